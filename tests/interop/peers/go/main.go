// redsync on go-redis, as a peer: see ../README.md. Options: lease=MS, for locks that are taken with lease 0 (without it
// redsync's default, 8 s); retry=MS, what it waits between two attempts (without it 50 to 250 ms, at random).
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"reflect"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	pool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	"golang.org/x/sys/unix"
)

const library = "github.com/go-redsync/redsync/v4"

var errUnsupported = errors.New("unsupported")

// worker is one of the parent's threads: a goroutine.
type worker struct {
	sync    *redsync.Redsync
	client  *redis.Client
	options map[string]string
	held    map[string]*redsync.Mutex
}

func (w *worker) mutex(name string, lease int, more ...redsync.Option) *redsync.Mutex {
	if lease == 0 {
		lease, _ = strconv.Atoi(w.options["lease"])
	}
	var options []redsync.Option
	if lease > 0 {
		options = append(options, redsync.WithExpiry(time.Duration(lease)*time.Millisecond))
	}
	if retry, err := strconv.Atoi(w.options["retry"]); err == nil {
		options = append(options, redsync.WithRetryDelay(time.Duration(retry)*time.Millisecond))
	}
	return w.sync.NewMutex(name, append(options, more...)...)
}

// holdOf is what this thread holds, or a mutex with a value of no holder: so that the refusal is theirs.
func (w *worker) holdOf(name string) *redsync.Mutex {
	if mutex, ok := w.held[name]; ok {
		return mutex
	}
	return w.mutex(name, 0, redsync.WithValue("no holder"))
}

func isBusy(err error) bool {
	var taken *redsync.ErrTaken
	return errors.Is(err, redsync.ErrFailed) || errors.As(err, &taken)
}

func (w *worker) lock(name string, lease int) (string, error) {
	mutex := w.mutex(name, lease)
	for {
		// It gives up after 32 attempts, some five seconds.
		err := mutex.Lock()
		if err == nil {
			w.held[name] = mutex
			return now(), nil
		}
		// For one of several servers it waits for a twentieth of the lease; one that is late is no failure yet.
		if !isBusy(err) && !errors.Is(err, context.DeadlineExceeded) {
			return "", err
		}
	}
}

func (w *worker) try(name string, wait, lease int) (string, error) {
	mutex := w.mutex(name, lease)
	err := mutex.TryLock()
	if isBusy(err) && wait > 0 {
		within, cancel := context.WithTimeout(context.Background(), time.Duration(wait)*time.Millisecond)
		defer cancel()
		for err != nil && within.Err() == nil {
			err = mutex.LockContext(within)
		}
	}
	at := now()
	switch {
	case err == nil:
		w.held[name] = mutex
		return "held " + at, nil
	case isBusy(err):
		return "busy " + at, nil
	default:
		return "", err
	}
}

func (w *worker) unlock(name string) (string, error) {
	mutex := w.holdOf(name)
	delete(w.held, name)
	if ok, err := mutex.Unlock(); !ok || err != nil {
		return "", refusal(err)
	}
	return "", nil
}

// extend cannot choose a time: it is the mutex's own, so this is a mutex of that time with the same value.
func (w *worker) extend(name string, lease int) (string, error) {
	mutex := w.mutex(name, lease, redsync.WithValue(w.holdOf(name).Value()))
	if ok, err := mutex.Extend(); !ok || err != nil {
		return "", refusal(err)
	}
	if _, ok := w.held[name]; ok {
		w.held[name] = mutex
	}
	return "", nil
}

func refusal(err error) error {
	if err == nil {
		return errors.New("false")
	}
	return err
}

func (w *worker) state(name string) (string, error) {
	holds := 0
	if mutex, ok := w.held[name]; ok && time.Now().Before(mutex.Until()) {
		holds = 1
	}
	return fmt.Sprintf("locked=? holds=%d ttl=?", holds), nil
}

// cycles is for the benchmarks.
func (w *worker) cycles(name string, millis, hold, pause, lease int, file string) (string, error) {
	var visits []byte
	done := 0
	for end := time.Now().Add(time.Duration(millis) * time.Millisecond); time.Now().Before(end); done++ {
		mutex := w.mutex(name, lease)
		for err := mutex.Lock(); err != nil; err = mutex.Lock() {
			if !isBusy(err) {
				return "", err
			}
		}
		visits = binary.LittleEndian.AppendUint64(visits, monotonic())
		if hold > 0 {
			time.Sleep(time.Duration(hold) * time.Microsecond)
		}
		visits = binary.LittleEndian.AppendUint64(visits, monotonic())
		if ok, err := mutex.Unlock(); !ok || err != nil {
			return "", refusal(err)
		}
		if pause > 0 {
			time.Sleep(time.Duration(pause) * time.Microsecond)
		}
	}
	if file != "-" {
		if err := os.WriteFile(file, visits, 0o600); err != nil {
			return "", err
		}
	}
	return strconv.Itoa(done), nil
}

// monotonic is the clock that all processes of the machine share.
func monotonic() uint64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0
	}
	return uint64(now.Nano())
}

func (w *worker) addUp(name, key string, more func(int) bool, pause, lease int) (string, error) {
	ctx, done := context.Background(), 0
	for ; more(done); done++ {
		if _, err := w.lock(name, lease); err != nil {
			return "", err
		}
		// Two commands, so that nothing but the lock makes it exact.
		value, err := w.client.Get(ctx, key).Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return "", err
		}
		if err := w.client.Set(ctx, key, value+1, 0).Err(); err != nil {
			return "", err
		}
		if err := w.client.RPush(ctx, key+":by", "redsync").Err(); err != nil {
			return "", err
		}
		if _, err := w.unlock(name); err != nil {
			return "", err
		}
		time.Sleep(time.Duration(pause) * time.Microsecond)
	}
	return strconv.Itoa(done), nil
}

func (w *worker) do(verb string, words []string) (string, error) {
	text := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(text(i))
		return n
	}
	switch verb {
	case "lock":
		return w.lock(text(0), number(1))
	case "try":
		return w.try(text(0), number(1), number(2))
	case "unlock":
		return w.unlock(text(0))
	case "extend":
		return w.extend(text(0), number(1))
	case "state":
		return w.state(text(0))
	case "count":
		return w.addUp(text(0), text(1), func(done int) bool { return done < number(2) }, number(3), number(4))
	case "contend":
		end := time.Now().Add(time.Duration(number(2)) * time.Millisecond)
		return w.addUp(text(0), text(1), func(int) bool { return time.Now().Before(end) }, number(3), number(4))
	case "cycles":
		return w.cycles(text(0), number(1), number(2), number(3), number(4), text(5))
	default:
		return "", errUnsupported
	}
}

func now() string {
	return strconv.FormatInt(time.Now().UnixMicro(), 10)
}

func answer(thread, words string, err error) string {
	switch {
	case errors.Is(err, errUnsupported):
		return thread + " error unsupported"
	case err != nil:
		class := strings.TrimPrefix(reflect.TypeOf(err).String(), "*")
		return fmt.Sprintf("%s error %s: %s", thread, class, strings.Join(strings.Fields(err.Error()), " "))
	default:
		return strings.TrimSpace(thread + " ok " + words)
	}
}

func version() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == library {
			return strings.TrimPrefix(module.Version, "v")
		}
	}
	return "?"
}

func connect(url string) (*redis.Client, error) {
	address, err := redis.ParseURL(url)
	if err != nil {
		return nil, err
	}
	// More connections than threads, as each has one of its own while it asks.
	address.PoolSize = 64
	client := redis.NewClient(address)
	return client, client.Ping(context.Background()).Err()
}

func main() {
	options := map[string]string{}
	for _, word := range os.Args[2:] {
		name, value, _ := strings.Cut(word, "=")
		options[name] = value
	}
	// More than one for a Redlock over independent servers; what `count` adds up is on the first.
	var clients []*redis.Client
	var pools []pool.Pool
	for _, url := range strings.Split(os.Args[1], ",") {
		client, err := connect(url)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		clients, pools = append(clients, client), append(pools, goredis.NewPool(client))
	}
	locks := redsync.New(pools...)

	var speak sync.Mutex
	say := func(text string) {
		speak.Lock()
		defer speak.Unlock()
		fmt.Println(text)
	}
	work := func(thread string, lines <-chan []string) {
		w := &worker{locks, clients[0], options, map[string]*redsync.Mutex{}}
		for line := range lines {
			words, err := w.do(line[0], line[1:])
			say(answer(thread, words, err))
		}
	}

	threads := map[string]chan []string{}
	say("ready redsync " + version())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words := strings.Fields(in.Text())
		lines, ok := threads[words[0]]
		if !ok {
			lines = make(chan []string, 1000)
			threads[words[0]] = lines
			go work(words[0], lines)
		}
		lines <- words[1:]
	}
	// At once, with nothing released.
	os.Exit(0)
}
