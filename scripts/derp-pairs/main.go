// derp-pairs keeps one packet of each pair of clients under way through a DERP relay, by the client library of the
// protocol's authors: a generator that shares nothing with weir's.
//
//	derp-pairs -url http://127.0.0.1:3340/derp -pairs 10 -size 1400 -warm 500ms -for 2s
//
// A pair is two connections and one goroutine: it sends, receives at the other end, checks number and bytes, and sends the
// next. One line says what came: packets of the window, seconds, and packets that came out of order, damaged or never. `opens`
// and `closes` are printed as the window does, for whoever reads clocks of the relay.
package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"tailscale.com/derp"
	"tailscale.com/derp/derphttp"
	"tailscale.com/net/netmon"
	"tailscale.com/types/key"
)

type pair struct {
	from, to *derphttp.Client
	key      key.NodePublic
	sent     atomic.Uint64
	came     atomic.Uint64
	wrong    atomic.Uint64
}

func client(url string) (*derphttp.Client, key.NodePublic) {
	private := key.NewNode()
	c, err := derphttp.NewClient(private, url, func(string, ...any) {}, netmon.NewStatic())
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Connect(context.Background()); err != nil {
		log.Fatal(err)
	}
	return c, private.Public()
}

// receive waits for the next packet.
func receive(c *derphttp.Client) ([]byte, error) {
	for {
		message, err := c.Recv()
		if err != nil {
			return nil, err
		}
		if packet, ok := message.(derp.ReceivedPacket); ok {
			return packet.Data, nil
		}
	}
}

func (p *pair) run(size int, stop *atomic.Bool) {
	packet := bytes.Repeat([]byte{0xa5}, size)
	for !stop.Load() {
		binary.LittleEndian.PutUint64(packet, p.sent.Load())
		if err := p.from.Send(p.key, packet); err != nil {
			log.Fatal(err)
		}
		p.sent.Add(1)
		data, err := receive(p.to)
		if err != nil {
			log.Fatal(err)
		}
		if !bytes.Equal(data, packet) {
			p.wrong.Add(1)
		}
		p.came.Add(1)
	}
}

func main() {
	url := flag.String("url", "http://127.0.0.1:3340/derp", "the relay")
	count := flag.Int("pairs", 10, "pairs of clients")
	size := flag.Int("size", 1400, "bytes of a packet")
	warm := flag.Duration("warm", 500*time.Millisecond, "before the window")
	window := flag.Duration("for", 2*time.Second, "the window")
	flag.Parse()
	if *size < 8 || *count < 1 {
		log.Fatal("derp-pairs: a packet has 8 bytes at least, and there is one pair at least")
	}
	pairs := make([]*pair, *count)
	for n := range pairs {
		from, _ := client(*url)
		to, key := client(*url)
		// ServerInfo is sent once the relay has the client
		if message, err := to.Recv(); err != nil {
			log.Fatal(err)
		} else if _, ok := message.(derp.ServerInfoMessage); !ok {
			log.Fatalf("derp-pairs: the relay says %T first, not ServerInfo", message)
		}
		pairs[n] = &pair{from: from, to: to, key: key}
	}
	var stop atomic.Bool
	var all sync.WaitGroup
	for _, p := range pairs {
		all.Add(1)
		go func() { defer all.Done(); p.run(*size, &stop) }()
	}
	came := func() (sum uint64) {
		for _, p := range pairs {
			sum += p.came.Load()
		}
		return
	}
	time.Sleep(*warm)
	fmt.Println("opens")
	before, began := came(), time.Now()
	time.Sleep(*window)
	packets, seconds := came()-before, time.Since(began).Seconds()
	fmt.Println("closes")
	stop.Store(true)
	ended := make(chan struct{})
	go func() { all.Wait(); close(ended) }()
	select { // a packet that was lost is waited for, and for no longer than this
	case <-ended:
	case <-time.After(5 * time.Second):
	}
	var lost, wrong uint64
	for _, p := range pairs {
		lost += p.sent.Load() - p.came.Load()
		wrong += p.wrong.Load()
	}
	fmt.Printf("packets %d seconds %.6f lost %d wrong %d\n", packets, seconds, lost, wrong)
}
