//! Who a process is: ids, capabilities, namespaces, filters.
