//! distlock on Redis Cluster, and the quorum (Redlock) over independent masters.
//!
//! Nothing is here yet. For one Redis server use `lock-redis`, or the facade `distlock` with a `redis://` URL.

#![forbid(unsafe_code)]
