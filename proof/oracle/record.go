package oracle

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pgleases/pgleases/internal/timeguard"
)

// An Instant is a time on the clock of package timeguard, which all processes of the machine share.
type Instant = timeguard.Instant

// Now returns the current time of that clock.
func Now() Instant { return timeguard.Now() }

// An Interval is a time during which a client certainly held a partition under one epoch, or a lock
// under one token.
type Interval struct {
	Client    string
	Partition int // or the lock's number
	// Or the token; 0: unknown, because it ended too soon, or because the same ownership was shown
	// before.
	Epoch  int64
	Shared bool    // the lock was acquired shared
	First  Instant // when the first read that showed it returned
	Last   Instant // when the last read that showed it began; before First if there was only one
	Open   bool    // the last read of the log still showed it
}

func (i Interval) String() string {
	return fmt.Sprintf("%s held %d@%d for %v", i.Client, i.Partition, i.Epoch, i.Last.Sub(i.First))
}

// A Log is what one client, or one goroutine that takes locks, has written.
type Log struct {
	Client    string
	Began     Instant // of the first read
	Last      Instant // of the last read
	Reads     int64
	Stale     int64 // reads that showed partitions past the trust deadline
	Untold    int64 // losses whose context did not end in time
	Intervals []Interval
}

// Held returns the partitions that the last read showed, in ascending order.
func (l Log) Held() []int {
	held := []int{}
	for _, i := range l.Intervals {
		if i.Open {
			held = append(held, i.Partition)
		}
	}
	slices.Sort(held) // intervals are sorted by their beginning
	return held
}

// GainsSince counts, by partition or lock, the intervals that began after since. The map has no
// entry for a count of 0.
func GainsSince(logs []Log, since Instant) map[int]int {
	gains := make(map[int]int)
	for _, log := range logs {
		for _, i := range log.Intervals {
			if i.First > since {
				gains[i.Partition]++
			}
		}
	}
	return gains
}

// The file has a header, and then one record per interval. All fields are little-endian words. The
// words of one write are consistent, so a process that is killed between two writes leaves a
// consistent file.
const (
	magic      = 0x70676c6f67303300
	headerSize = 6 * 8 // magic, began, last, reads, stale, untold
	// Partition, epoch, shared, first, last; last is 0 while the interval is open.
	recordSize = 5 * 8
)

// A Writer writes a log. Only one goroutine may use it.
type Writer struct {
	file    *os.File
	records int64
}

// NewWriter creates the log at path, whose base name is the client's name. The file must not exist.
func NewWriter(path string) (*Writer, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	return &Writer{file: f}, err
}

// Header writes what a Log says of the whole. It comes before any interval, because the log may be
// read at any time.
func (w *Writer) Header(began, last Instant, reads, stale, untold int64) error {
	return w.write(0, magic, int64(began), int64(last), reads, stale, untold)
}

// Begin appends an interval that is open, and returns its number.
func (w *Writer) Begin(partition int, epoch int64, shared bool, first Instant) (int64, error) {
	n := w.records
	w.records++
	var one int64
	if shared {
		one = 1
	}
	return n, w.write(headerSize+n*recordSize, int64(partition), epoch, one, int64(first), 0)
}

// End ends an interval.
func (w *Writer) End(n int64, last Instant) error {
	return w.write(headerSize+n*recordSize+4*8, int64(last))
}

// Close closes the file. Intervals that are open last until the last read.
func (w *Writer) Close() error { return w.file.Close() }

func (w *Writer) write(offset int64, words ...int64) error {
	buffer := make([]byte, 0, headerSize)
	for _, word := range words {
		buffer = binary.LittleEndian.AppendUint64(buffer, uint64(word))
	}
	_, err := w.file.WriteAt(buffer, offset)
	return err
}

// Read reads a log. The log's writer may still be running, or may have been killed. The client's
// name is the base name of the file. A missing or incomplete file is an empty log.
func Read(path string) (Log, error) {
	log := Log{Client: strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))}
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(text) < headerSize {
		return log, nil
	}
	if err != nil {
		return log, err
	}
	word := func(i int) int64 { return int64(binary.LittleEndian.Uint64(text[i*8:])) }
	if word(0) != magic {
		return log, fmt.Errorf("oracle: %s is no log", path)
	}
	log.Began, log.Last = Instant(word(1)), Instant(word(2))
	log.Reads = word(3)
	log.Stale, log.Untold = word(4), word(5)
	for at := headerSize; at+recordSize <= len(text); at += recordSize {
		i := at / 8
		interval := Interval{
			Client:    log.Client,
			Partition: int(word(i)),
			Epoch:     word(i + 1),
			Shared:    word(i+2) != 0,
			First:     Instant(word(i + 3)),
			Last:      Instant(word(i + 4)),
		}
		if interval.Last == 0 {
			interval.Last, interval.Open = log.Last, true
		}
		log.Intervals = append(log.Intervals, interval)
	}
	return log, nil
}

// EachFile calls read with the lines of each file whose path matches a pattern of filepath.Glob.
func EachFile(pattern string, read func(*bufio.Scanner) error) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(f)
		if err := errors.Join(read(lines), lines.Err(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// ReadAll reads the logs at the paths that match a pattern of filepath.Glob.
func ReadAll(pattern string) ([]Log, error) {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return nil, err
	}
	logs := make([]Log, len(paths))
	for i, path := range paths {
		logs[i], err = Read(path)
		if err != nil {
			return nil, err
		}
	}
	return logs, nil
}
