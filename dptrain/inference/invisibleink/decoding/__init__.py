"""Decodes over keys and values that lie in buffers of the public length of a text, made once; and, where asked, by one graph."""
