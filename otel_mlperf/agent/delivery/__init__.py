"""Delivery of spans, metrics, scalars and reports to destinations, with accounts of all items."""
