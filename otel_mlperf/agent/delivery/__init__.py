"""Delivery to destinations: requests to servers, parts of tables, and their accounts."""
