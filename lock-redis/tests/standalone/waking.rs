//! waking
