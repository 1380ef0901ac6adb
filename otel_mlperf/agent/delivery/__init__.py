"""Delivery to destinations: requests to servers, parts of tables, and the accounts of both."""
