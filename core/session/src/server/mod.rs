//! The half of the proxy: which session a connection enters, and which calls it has executed.
