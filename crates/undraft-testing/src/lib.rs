//! undraft-testing.
