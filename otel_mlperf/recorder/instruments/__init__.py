"""Counters, gauges, histograms, aggregated sections and logged values."""
