package wire

// span is a half-open range of the body.
type span struct{ start, end int }

// Head is what one pass over a request body finds. It refers into the body by
// offset and must be used with the very bytes it was made from.
type Head struct {
	API    API
	Model  string // unescaped; "" when absent or null
	Stream bool
	N      int // 1 when absent or null
	// Identity candidates, unescaped, "" when absent, null, empty or not a string.
	User, SafetyIdentifier, MetadataUserID, MetadataSessionID string
	// What the client itself asked for in stream_options.
	IncludeUsage, ContinuousUsage bool
	// (unexported offsets for Splice, Conversation and HasMember follow)
	head
}

// head holds what Splice, Conversation and Denied need to find their way back.
type head struct {
	members []member // the first maxMembers, in order
	more    int      // offset behind the last recorded one when there are more, else 0
	close   int      // the closing brace
	// Indexes into the body of values, end 0 when absent; the last one counts,
	// as it does for every engine.
	model, options, messages, prompt, instructions, input span
}

// member is one top-level member: its key without quotes and its value.
type member struct{ key, val span }

// Field is one top-level member with its raw JSON value.
type Field struct {
	Name  string
	Value []byte
}

// Patch is a variant's change of parameters and prompt, compiled once.
type Patch struct {
	Force         []Field  // params: set, replacing the client's value
	Default       []Field  // params_default: set when the member is absent or null
	Remove        []string // params_remove
	SystemPrepend string   // merged into the first system (or developer) message; created only if absent
	SystemAppend  string
}

// Edit is what Splice changes. The zero Edit changes nothing.
type Edit struct {
	Model           string // replaces the value of model; "" leaves it
	IncludeUsage    bool   // set stream_options.include_usage to true (only used when the request streams)
	ContinuousUsage bool   // and stream_options.continuous_usage_stats
	Patch           *Patch
}
