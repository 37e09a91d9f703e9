//! undraft.
