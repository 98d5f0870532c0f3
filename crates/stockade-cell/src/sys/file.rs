//! Opening and changing files relative to descriptors.
