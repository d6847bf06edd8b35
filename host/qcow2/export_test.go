package qcow2

// RefcountClusters is refcountClusters for tests.
var RefcountClusters = refcountClusters
