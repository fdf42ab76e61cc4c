package pgserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/ory/dockertest/v3"
	"github.com/ory/dockertest/v3/docker"
)

const (
	// containerName begins the names of the containers, and is the key of the label that tells whose they are.
	containerName = "pgleases-pgtest"

	postgresPort = "5432/tcp"
)

// run starts a container on a free port of 127.0.0.1, which is removed when it ends.
func run(pool *dockertest.Pool, image string, o options, owner string) (*dockertest.Resource, error) {
	repository, tag := docker.ParseRepositoryTag(image)
	command := []string{"postgres"}
	for _, name := range slices.Sorted(maps.Keys(o.settings)) {
		command = append(command, "-c", name+"="+o.settings[name])
	}
	// As in an owned server, see initialise.
	env := []string{"POSTGRES_HOST_AUTH_METHOD=trust", "POSTGRES_INITDB_ARGS=--encoding=UTF8 --locale=C --no-sync"}
	memory := map[string]string{}
	if o.settings["fsync"] == "off" { // see tempRoot
		const data = "/var/lib/pgtest"
		env = append(env, "PGDATA="+data)
		memory[data] = ""
	}
	name := containerName + "-" + strings.ToLower(rand.Text())
	container, err := pool.RunWithOptions(&dockertest.RunOptions{
		Name:         name,
		Repository:   repository,
		Tag:          tag,
		Cmd:          command,
		Env:          env,
		Labels:       map[string]string{containerName: owner},
		ExposedPorts: []string{postgresPort},
		PortBindings: map[docker.Port][]docker.PortBinding{postgresPort: {{HostIP: "127.0.0.1", HostPort: "0"}}},
	}, func(host *docker.HostConfig) {
		host.AutoRemove = true
		host.Tmpfs = memory
		host.PublishAllPorts = false // only the one above
	})
	if err != nil { // it may have been made, and not started
		return nil, errors.Join(err, pool.RemoveContainerByName(name))
	}
	return container, nil
}

// awaitContainer waits until the server in the container takes connections, and returns its version.
func (s *Server) awaitContainer(ctx context.Context, pool *dockertest.Pool, container *dockertest.Resource) (version string, err error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// The log ends with the container, and is gone with it.
	var log bytes.Buffer
	ended := make(chan struct{})
	reading, stop := context.WithCancel(ctx)
	go func() {
		defer close(ended)
		_ = pool.Client.Logs(docker.LogsOptions{Context: reading, Container: container.Container.ID, OutputStream: &log,
			ErrorStream: &log, Stdout: true, Stderr: true, Follow: true})
	}()
	defer func() {
		stop()
		<-ended
		if err != nil {
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			err = fmt.Errorf("%w; the end of its log: %s", err, lines[len(lines)-1])
		}
	}()
	poll := time.NewTicker(10 * pollInterval)
	defer poll.Stop()
	for {
		err := s.maintain(ctx, func(conn *pgx.Conn) error {
			version, _, _ = strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
			return nil
		})
		if err == nil {
			return version, nil
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return "", fmt.Errorf("it was not ready in time: %w", err)
		case <-ended:
			return "", errors.New("it ended before it was ready")
		}
	}
}

// owner is what the label of a container says of the process that started it: on which machine it has which folder.
func owner(folder string) string {
	host, _ := os.Hostname() // without it, nobody removes what another left
	return host + ":" + folder
}

// removeAbandoned removes the containers of processes on this machine that died, whose folders have been swept. It does
// what it can, as sweep does; the engine ends what it leaves after containerLife.
func removeAbandoned(pool *dockertest.Pool) {
	containers, _ := pool.Client.ListContainers(docker.ListContainersOptions{
		All: true, Filters: map[string][]string{"label": {containerName}},
	})
	for _, c := range containers {
		folder, ours := strings.CutPrefix(c.Labels[containerName], owner(""))
		if _, err := os.Stat(folder); ours && os.IsNotExist(err) {
			_ = pool.Client.RemoveContainer(docker.RemoveContainerOptions{ID: c.ID, Force: true, RemoveVolumes: true})
		}
	}
}
