package pgserver

import "maps"

// Option changes what Start and Private provide.
type Option func(*options)

type options struct {
	private  bool
	dir      string
	settings map[string]string
}

func newOptions(opts []Option) options {
	o := options{settings: map[string]string{
		"max_connections": "200",
		"shared_buffers":  "64MB",
		"log_line_prefix": "%m [%p] %d ",
		"log_timezone":    "UTC",
		"timezone":        "UTC",
		// Nothing here has to survive a crash of the machine; a crash of the server alone loses nothing by it.
		"fsync": "off",
		// Whatever remains of it is in the folder, not in /dev/shm, when the server was killed.
		"dynamic_shared_memory_type": "mmap",
	}}
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// WithSettings adds server settings (postgresql.conf) to the defaults, or replaces them. It has no effect on a
// foreign server. Where the server listens, and its cluster_name, cannot be changed.
func WithSettings(settings map[string]string) Option {
	return func(o *options) { maps.Copy(o.settings, settings) }
}

// WithDurable keeps fsync on, and the data on disk rather than in memory, for measurements: commits then wait for the
// disk.
func WithDurable() Option {
	return func(o *options) { o.settings["fsync"] = "on" }
}

// WithDir has an own server keep everything in that directory, which any user must be able to enter, for those who want a
// particular disk.
func WithDir(dir string) Option {
	return func(o *options) { o.dir = dir }
}

// WithPrivate always starts an own server, whatever the environment points to: for those who restart or kill it.
func WithPrivate() Option {
	return func(o *options) { o.private = true }
}
