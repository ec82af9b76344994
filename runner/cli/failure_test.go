package cli_test

// dyingLimit is a memory limit under which the embedded server answers short
// contexts and dies of long ones.
const dyingLimit = "8Mi"
