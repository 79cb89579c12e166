"""`dptrain registry`: who may contribute, with which keys and classes."""
