"""The wire: what becomes of an upload between a client and the server's step."""
