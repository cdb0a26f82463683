"""The readers of what others write, under a fuzzer that is guided by coverage."""
