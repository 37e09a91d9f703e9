//! undraft-cpu.
