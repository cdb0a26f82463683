"""Compiled programs and device images as bytes: what each is, and what it says of itself."""
