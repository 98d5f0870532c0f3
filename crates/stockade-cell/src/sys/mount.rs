//! The mount API of Linux 5.2 and later.
