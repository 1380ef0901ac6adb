"""Conversion of Kineto or Chrome traces to spans: read, link, count, choose, encode; no torch."""
