"""`dptrain rights`: grants of what clients of a service may be answered from."""
