"""`dptrain demo`: the whole way of a contribution on real data, from a key to a verified export; and `dptrain quickstart`."""
