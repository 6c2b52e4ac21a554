package router

// ParseStrict reads one JSON object into a T as strictly as ParseDocument
// reads a document: an unknown or repeated member, a wrong type, a value that
// is not an object is a problem with its JSON pointer. T is a struct without
// embedded ones. The error is Problems.
func ParseStrict[T any](data []byte) (*T, error) { return parseStrict[T](data) }
