//go:build darwin || freebsd || linux || windows

package pgtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const imageVariable = "PGLEASES_TEST_POSTGRES_IMAGE"

// startDocker starts a server in a container. The engine ends it after two hours if the keeper was
// killed.
func startDocker(folder string) (s server, stop func() error, err error) {
	host := os.Getenv("DOCKER_HOST")
	if host != "" && !strings.HasPrefix(host, "unix:") {
		return server{}, nil, fmt.Errorf("%w: the engine at DOCKER_HOST=%s may be another machine's", errMissing, host)
	}
	pool, err := dockertest.NewPool("")
	if err == nil {
		pool.MaxWait = timeout
		err = pool.Client.PingWithContext(within(2 * time.Second))
	}
	if err != nil {
		return server{}, nil, fmt.Errorf("%w: %w", errMissing, err)
	}
	image := cmp.Or(os.Getenv(imageVariable), "postgres:18-alpine") // the smaller kind of the official image
	repository, tag := docker.ParseRepositoryTag(image)
	if _, err := pool.Client.InspectImage(image); err != nil {
		notice("pulling %s, for at most a minute", image)
		request := docker.PullImageOptions{Repository: repository, Tag: tag, Context: within(time.Minute)}
		if err := pool.Client.PullImage(request, docker.AuthConfiguration{}); err != nil {
			return server{}, nil, fmt.Errorf("%w: pull %s: %w", errMissing, image, err)
		}
	}
	const port = "5432/tcp"
	options := &dockertest.RunOptions{
		Name:       filepath.Base(folder),
		Repository: repository,
		Tag:        tag,
		Env: []string{
			"POSTGRES_HOST_AUTH_METHOD=trust",
			"POSTGRES_INITDB_ARGS=--encoding=UTF8 --locale=C --no-sync",
		},
		Cmd:          []string{"postgres"},
		ExposedPorts: []string{port},
		PortBindings: map[docker.Port][]docker.PortBinding{port: {{HostIP: "127.0.0.1", HostPort: "0"}}},
	}
	for name, value := range settings {
		options.Cmd = append(options.Cmd, "-c", name+"="+value)
	}
	_ = pool.RemoveContainerByName(options.Name) // it exists if a keeper was killed
	container, err := pool.RunWithOptions(options, func(host *docker.HostConfig) {
		host.PublishAllPorts = false // only the one above
	})
	if err != nil {
		return server{}, nil, fmt.Errorf("run %s: %w", image, err)
	}
	address := container.GetHostPort(port)
	err = container.Expire(2 * 60 * 60)
	if err == nil {
		err = pool.Retry(func() (err error) {
			url := "postgres://postgres@" + address + "/postgres?sslmode=disable"
			s, err = describe(url, "in Docker ("+image+") on "+address)
			return err
		})
	}
	stop = func() error { return pool.Purge(container) }
	if err != nil {
		var log strings.Builder
		_ = pool.Client.Logs(docker.LogsOptions{
			Container:    container.Container.ID,
			OutputStream: &log,
			ErrorStream:  &log,
			Stdout:       true,
			Stderr:       true,
			Tail:         "20",
		})
		return server{}, nil, errors.Join(fmt.Errorf("run %s: %w; the end of its log:\n%s", image, err, &log), stop())
	}
	return s, stop, nil
}

// within returns a context of that length, for a process that does not live only for its requests.
func within(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	context.AfterFunc(ctx, cancel)
	return ctx
}
