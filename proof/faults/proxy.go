//go:build unix

package faults

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	toxiproxy "github.com/Shopify/toxiproxy/v2"
	toxiclient "github.com/Shopify/toxiproxy/v2/client"
	"github.com/jackc/pgx/v5"
	"github.com/rs/zerolog"
)

// Proxies is a process that runs proxies. It is a process of its own because toxiproxy leaks
// goroutines if a connection ends while its data is delayed, and tests check for leaked goroutines.
type Proxies struct {
	cmd    *exec.Cmd
	client *toxiclient.Client
	made   atomic.Int64
}

// StartProxies starts the process, which ends with this one.
func StartProxies() (*Proxies, error) {
	cmd, _, output, err := spawn("", envProxies+"=1", os.Stderr)
	if err != nil {
		return nil, err
	}
	address, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		return nil, fmt.Errorf("faults: start proxies: %w", err)
	}
	return &Proxies{cmd: cmd, client: toxiclient.NewClient(strings.TrimSpace(address))}, nil
}

// serveProxies is the main function of that process: it prints its address, and serves until its
// input ends.
func serveProxies(input io.Reader, output io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(output, listener.Addr()); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, input)
		os.Exit(0)
	}()
	server := toxiproxy.NewServer(toxiproxy.NewMetricsContainer(nil), zerolog.Nop())
	return http.Serve(listener, server.Routes())
}

// Close kills the process, with all proxies and connections.
func (ps *Proxies) Close() {
	_ = ps.cmd.Process.Kill() // an error means that it has ended
	_ = ps.cmd.Wait()
	http.DefaultClient.CloseIdleConnections()
}

// A Proxy is a way to a database that can be frozen, slowed and cut. It ends with its process. All
// methods are safe for concurrent use.
type Proxy struct {
	url   string
	mu    sync.Mutex // guards proxy
	proxy *toxiclient.Proxy
}

// New creates a proxy on a free port of 127.0.0.1, in front of the server that the connection
// string names with a TCP address. It is safe for concurrent use.
func (ps *Proxies) New(connString string) (*Proxy, error) {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return nil, err
	}
	if strings.HasPrefix(config.Host, "/") {
		return nil, fmt.Errorf("faults: a proxy leads to TCP, not to the socket %s", config.Host)
	}
	upstream := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	proxy, err := ps.client.CreateProxy(fmt.Sprintf("database-%d", ps.made.Add(1)), "127.0.0.1:0", upstream)
	if err != nil {
		return nil, fmt.Errorf("faults: make a proxy: %w", err)
	}
	p := &Proxy{proxy: proxy}
	p.url, err = at(connString, proxy.Listen)
	return p, err
}

// at returns the connection string, a URL or keywords and values, with another address.
func at(connString, address string) (string, error) {
	if strings.HasPrefix(connString, "postgres://") || strings.HasPrefix(connString, "postgresql://") {
		u, err := url.Parse(connString)
		if err != nil {
			return "", err
		}
		u.Host = address
		query := u.Query()
		query.Del("host") // parameters override the host of the URL
		query.Del("port")
		u.RawQuery = query.Encode()
		return u.String(), nil
	}
	host, port, err := net.SplitHostPort(address)
	return connString + " host=" + host + " port=" + port, err // the last value of a keyword counts
}

// URL is the connection string of the same database through the proxy.
func (p *Proxy) URL() string { return p.url }

// The directions through a proxy.
const (
	requests = "upstream"
	answers  = "downstream"
)

// Freeze drops all bytes in both directions, without an error to either side.
func (p *Proxy) Freeze() error {
	return p.add("timeout", toxiclient.Attributes{"timeout": 0}, requests, answers)
}

// LoseRequests drops all bytes from the client.
func (p *Proxy) LoseRequests() error {
	return p.add("timeout", toxiclient.Attributes{"timeout": 0}, requests)
}

// LoseAnswers drops all bytes from the server: statements are executed, but their answers do not
// arrive.
func (p *Proxy) LoseAnswers() error {
	return p.add("timeout", toxiclient.Attributes{"timeout": 0}, answers)
}

// Reset resets the connections, and each new connection too.
func (p *Proxy) Reset() error {
	return p.add("reset_peer", toxiclient.Attributes{"timeout": 0}, requests, answers)
}

// Slow delays every packet in both directions by delay, plus or minus half of it.
func (p *Proxy) Slow(delay time.Duration) error {
	return p.add("latency", toxiclient.Attributes{"latency": delay.Milliseconds(), "jitter": delay.Milliseconds() / 2}, requests, answers)
}

func (p *Proxy) add(kind string, attributes toxiclient.Attributes, streams ...string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, stream := range streams {
		if _, err := p.proxy.AddToxic("", kind, stream, 1, attributes); err != nil {
			return fmt.Errorf("faults: %s: %w", kind, err)
		}
	}
	return nil
}

// Thaw ends the effect of the methods above. It breaks connections that lost bytes.
func (p *Proxy) Thaw() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	toxics, err := p.proxy.Toxics()
	if err != nil {
		return fmt.Errorf("faults: thaw: %w", err)
	}
	for _, toxic := range toxics {
		if err := p.proxy.RemoveToxic(toxic.Name); err != nil {
			return fmt.Errorf("faults: thaw: %w", err)
		}
	}
	return nil
}

// Cut breaks all connections. New connections succeed at once.
func (p *Proxy) Cut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.proxy.Disable(); err != nil {
		return fmt.Errorf("faults: cut: %w", err)
	}
	if err := p.proxy.Enable(); err != nil {
		return fmt.Errorf("faults: enable: %w", err)
	}
	return nil
}
