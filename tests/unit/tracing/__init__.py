"""Tests of what watches a program that is no model."""
