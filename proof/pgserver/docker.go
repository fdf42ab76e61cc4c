package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const (
	// defaultImage is the smaller kind of the official image: it has to be pulled within pullTimeout.
	defaultImage = "postgres:18-alpine"

	engineTimeout = 2 * time.Second
	pullTimeout   = time.Minute

	// containerLife is when the engine ends a container whose process did not: longer than the tests of all packages on
	// one server take.
	containerLife = 2 * time.Hour
)

// startDocker starts a server in a container, which Stop removes.
func startDocker(ctx context.Context, o options) (*Server, error) {
	s, err := startContainer(ctx, o, cmp.Or(os.Getenv(EnvPostgresImage), defaultImage), containerLife)
	if err != nil {
		return nil, &unusable{"docker", err}
	}
	return s, nil
}

func startContainer(ctx context.Context, o options, image string, life time.Duration) (_ *Server, err error) {
	endpoint, err := findEngine()
	if err != nil {
		return nil, err
	}
	pool, err := connectEngine(ctx, endpoint)
	if err != nil {
		return nil, err
	}
	// It holds nothing: as for an owned server, it is there for as long as this process lives.
	folder, err := newFolder(nil, "", true)
	if err != nil {
		return nil, err
	}
	removeAbandoned(pool)
	s := &Server{remove: folder.remove}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if err := pull(ctx, pool, image); err != nil {
		return nil, fmt.Errorf("pull %s: %w", image, err)
	}
	container, err := run(pool, image, o, owner(folder.path))
	if err != nil {
		return nil, fmt.Errorf("run %s: %w", image, err)
	}
	s.remove = sync.OnceValue(func() error {
		err := pool.Purge(container)
		if gone := (*docker.NoSuchContainer)(nil); errors.As(err, &gone) {
			err = nil
		}
		return errors.Join(err, folder.remove())
	})
	if err := container.Expire(uint(life.Seconds())); err != nil {
		return nil, err
	}
	port := container.GetPort(postgresPort)
	s.url = fmt.Sprintf("postgres://postgres@127.0.0.1:%s/postgres?sslmode=disable", port)
	version, err := s.awaitContainer(ctx, pool, container)
	if err != nil {
		return nil, err
	}
	s.describe = fmt.Sprintf("PostgreSQL %s in Docker (%s) on 127.0.0.1:%s", version, image, port)
	return s, nil
}

// findEngine returns where the engine listens. It only looks: where there is no Docker, that must cost nothing.
func findEngine() (string, error) {
	if host := os.Getenv("DOCKER_HOST"); host != "" {
		u, err := url.Parse(host)
		if err != nil {
			return "", fmt.Errorf("DOCKER_HOST: %w", err)
		}
		if name := u.Hostname(); name != "" && name != "localhost" && name != "::1" && !strings.HasPrefix(name, "127.") {
			return "", fmt.Errorf("the engine at DOCKER_HOST=%s is another machine's: a server in it would listen there", host)
		}
		return host, nil
	}
	if runtime.GOOS == "windows" {
		const pipe = `\\.\pipe\docker_engine`
		if _, err := os.Stat(pipe); err != nil {
			return "", fmt.Errorf("no engine at %s: start Docker, or set DOCKER_HOST", pipe)
		}
		return "npipe:////./pipe/docker_engine", nil
	}
	sockets := []string{"/var/run/docker.sock"}
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" { // where it runs without root
		sockets = append(sockets, filepath.Join(dir, "docker.sock"))
	}
	if home, err := os.UserHomeDir(); err == nil { // Docker Desktop
		sockets = append(sockets, filepath.Join(home, ".docker/run/docker.sock"))
	}
	for _, socket := range sockets {
		if _, err := os.Stat(socket); err == nil {
			return "unix://" + socket, nil
		}
	}
	return "", fmt.Errorf("no engine at %s: start Docker, or set DOCKER_HOST", strings.Join(sockets, ", "))
}

func connectEngine(ctx context.Context, endpoint string) (*dockertest.Pool, error) {
	pool, err := dockertest.NewPool(endpoint)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, engineTimeout)
	defer cancel()
	if err := pool.Client.PingWithContext(ctx); err != nil {
		return nil, fmt.Errorf("no engine answers at %s: %w", endpoint, err)
	}
	return pool, nil
}

// pull gets the image unless it is there.
func pull(ctx context.Context, pool *dockertest.Pool, image string) error {
	if _, err := pool.Client.InspectImage(image); !errors.Is(err, docker.ErrNoSuchImage) {
		return err
	}
	fmt.Fprintf(os.Stderr, "pgtest: pulling %s, for at most %v\n", image, pullTimeout)
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	repository, tag := docker.ParseRepositoryTag(image)
	return pool.Client.PullImage(docker.PullImageOptions{Repository: repository, Tag: tag, Context: ctx}, docker.AuthConfiguration{})
}
