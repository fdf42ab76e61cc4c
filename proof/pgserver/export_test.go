package pgserver

import (
	"context"
	"time"
)

// StartContainer starts a server in a container that the engine ends after life.
func StartContainer(ctx context.Context, image string, life time.Duration) (*Server, error) {
	if image == "" {
		image = defaultImage
	}
	return startContainer(ctx, newOptions(nil), image, life)
}
