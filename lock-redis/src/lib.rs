//! distlock on one Redis server.
