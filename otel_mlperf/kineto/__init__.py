"""From a Kineto or Chrome trace to spans: read, link, count, choose, encode. Needs no torch."""
