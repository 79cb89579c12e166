"""Decodes over keys and values in buffers of the public length of a text, made once; where asked, by one compiled step."""
