"""Conversion of Kineto or Chrome traces to spans and exact totals, without torch."""
