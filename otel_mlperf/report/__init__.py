"""Rendering of answers: for terminals, notebooks, HTML pages, programs and timeline viewers."""
