//! Starting, signalling and reaping processes.
