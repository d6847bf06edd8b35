package market

// Parse reads an index that a key must have signed.
var Parse = parse
