"""Parts of the protocol package that do I/O: readiness of descriptors, the pump, the lifeline."""
