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

// Proxies is a process full of proxies. They have one of their own because toxiproxy leaves goroutines behind where a
// connection ends while its data is delayed, and tests look for such.
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

// serveProxies is the process: it tells its address, and serves until its input ends.
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

// Close ends the process, with all proxies and connections.
func (ps *Proxies) Close() {
	_ = ps.cmd.Process.Kill() // an error tells that it is gone
	_ = ps.cmd.Wait()
	http.DefaultClient.CloseIdleConnections()
}

// A Proxy is a way to a database that can be frozen, slowed and cut. It ends with the process that it is in. All methods are
// safe for concurrent use.
type Proxy struct {
	url   string
	mu    sync.Mutex // guards proxy
	proxy *toxiclient.Proxy
}

// New makes a proxy on a free port of 127.0.0.1, in front of the server that a connection string leads to by TCP. It is
// safe for concurrent use.
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

// at returns the connection string, a URL or keywords and values, with another address in it.
func at(connString, address string) (string, error) {
	if strings.HasPrefix(connString, "postgres://") || strings.HasPrefix(connString, "postgresql://") {
		u, err := url.Parse(connString)
		if err != nil {
			return "", err
		}
		u.Host = address
		query := u.Query()
		query.Del("host") // these would count
		query.Del("port")
		u.RawQuery = query.Encode()
		return u.String(), nil
	}
	host, port, err := net.SplitHostPort(address)
	return connString + " host=" + host + " port=" + port, err // the last one counts
}

// URL is the connection string of the same database through the proxy.
func (p *Proxy) URL() string { return p.url }

// The ways through a proxy.
const (
	requests = "upstream"
	answers  = "downstream"
)

// Freeze lets no byte pass any more, either way: what is sent is lost, and nobody is told.
func (p *Proxy) Freeze() error {
	return p.add("timeout", toxiclient.Attributes{"timeout": 0}, requests, answers)
}

// LoseRequests freezes what the client sends.
func (p *Proxy) LoseRequests() error {
	return p.add("timeout", toxiclient.Attributes{"timeout": 0}, requests)
}

// LoseAnswers freezes what the server sends: statements are carried out, and nobody learns of it.
func (p *Proxy) LoseAnswers() error {
	return p.add("timeout", toxiclient.Attributes{"timeout": 0}, answers)
}

// Reset breaks the connections without a word of farewell, and new ones too.
func (p *Proxy) Reset() error {
	return p.add("reset_peer", toxiclient.Attributes{"timeout": 0}, requests, answers)
}

// Slow delays every packet either way by that time, half of it more or less.
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

// Thaw ends Freeze and its like, which breaks the connections that lost bytes, Reset and Slow.
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

// Cut breaks all connections; new ones can be made at once.
func (p *Proxy) Cut() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.proxy.Disable(); err != nil {
		return fmt.Errorf("faults: cut: %w", err)
	}
	if err := p.proxy.Enable(); err != nil {
		return fmt.Errorf("faults: mend: %w", err)
	}
	return nil
}
