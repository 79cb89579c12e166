"""The stores that a database with SQL keeps: one file of SQLite, or one schema of PostgreSQL."""
