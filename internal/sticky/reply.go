package sticky

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"
)

// isReply reports an error that Redis itself answered (wrong type, no
// permission), as opposed to no answer. A server that says that it cannot
// serve now is away.
func isReply(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	word, _, _ := strings.Cut(reply.Error(), " ")
	switch word {
	case "LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN":
		return false
	}
	return true
}
