package pgserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// errPortTaken says that another program took the port between the time it was found free and the server's start.
var errPortTaken = errors.New("port taken")

// freePort returns a port of 127.0.0.1 that was free a moment ago. It lies below the range from which systems take
// the ports of outgoing connections: such a connection could get the port while a server restarts on it.
func freePort() (int, error) {
	for range 100 {
		port := 20000 + rand.IntN(12000)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		return port, l.Close()
	}
	return 0, fmt.Errorf("no free port on 127.0.0.1 in 100 attempts")
}
