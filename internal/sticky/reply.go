package sticky

import (
	"errors"

	"github.com/redis/go-redis/v9"
)

// isReply reports an error that Redis itself answered (wrong type, no
// permission), as opposed to no answer.
func isReply(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply)
}
