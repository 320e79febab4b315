// CartPole as an RLX client:
//
//	cartpole HOST:PORT[,HOST:PORT] [--environments N] [--autoreset disabled|same_step|next_step]
//	         [--mode train|exploit] [--episodes K] [--seed S] [--token-file FILE] [--tls-ca FILE]
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand"
	"os"
	"strings"
	"time"

	rlx "github.com/deeplearninc/relaax/protocol/clients/go"
)

type cartPole struct {
	x, speed, angle, turning float64
	steps                    int
}

func begun(random *rand.Rand) cartPole {
	draw := func() float64 { return 0.1*random.Float64() - 0.05 }
	return cartPole{draw(), draw(), draw(), draw(), 0}
}

// step is one Euler step of 0.02 s: Barto, Sutton and Anderson 1983, with the constants of gymnasium's CartPole-v1.
func (p *cartPole) step(action int64) (terminated, truncated bool) {
	sine, cosine := math.Sincos(p.angle)
	force := -10.
	if action == 1 {
		force = 10
	}
	push := (force + 0.05*p.turning*p.turning*sine) / 1.1
	twist := (9.8*sine - cosine*push) / (0.5 * (4./3 - 0.1*cosine*cosine/1.1))
	acceleration := push - 0.05*twist*cosine/1.1
	p.x, p.speed = p.x+0.02*p.speed, p.speed+0.02*acceleration
	p.angle, p.turning = p.angle+0.02*p.turning, p.turning+0.02*twist
	p.steps++
	terminated = math.Abs(p.x) > 2.4 || math.Abs(p.angle) > 12*math.Pi/180
	return terminated, p.steps >= 500 && !terminated
}

func leaf(poles []cartPole) [][]byte {
	numbers := make([]float32, 0, 4*len(poles))
	for _, p := range poles {
		numbers = append(numbers, float32(p.x), float32(p.speed), float32(p.angle), float32(p.turning))
	}
	return [][]byte{rlx.Bytes(numbers)}
}

type player struct {
	client           *rlx.Client
	autoreset        rlx.Autoreset
	poles            []cartPole
	random           *rand.Rand
	episodes, wanted int
	total            float64
}

func (p *player) begin() ([][]byte, error) {
	for i := range p.poles {
		p.poles[i] = begun(p.random)
	}
	return p.client.Init(leaf(p.poles), nil)
}

// play plays until enough episodes have ended, or an error occurs.
func (p *player) play() error {
	n := len(p.poles)
	ended := make([]bool, n)
	actions, err := p.begin()
	for err == nil && (p.wanted == 0 || p.episodes < p.wanted) {
		any, over, cut, reward := false, make([]bool, n), make([]bool, n), make([]float64, n)
		last := make([]cartPole, n)
		for i, action := range rlx.Values[int64](actions[0]) {
			pole := &p.poles[i]
			if ended[i] { // NEXT_STEP: this step only begins an episode
				*pole, ended[i] = begun(p.random), false
				continue
			}
			reward[i] = 1
			over[i], cut[i] = pole.step(action)
			last[i] = *pole
			if !over[i] && !cut[i] {
				continue
			}
			any, p.episodes, p.total = true, p.episodes+1, p.total+float64(pole.steps)
			p.client.Metric("episode/length", float64(pole.steps))
			switch p.autoreset {
			case rlx.NextStep:
				ended[i] = true
			case rlx.SameStep:
				*pole = begun(p.random)
			}
		}
		if any && p.autoreset == rlx.Disabled { // all episodes end together
			for i := range cut {
				cut[i] = !over[i]
			}
			if _, err = p.client.Reset(rlx.Outcome{Reward: reward, Truncated: cut, FinalObservation: leaf(last)}); err == nil {
				actions, err = p.begin()
			}
			continue
		}
		outcome := rlx.Outcome{Reward: reward, Observation: leaf(p.poles), Terminated: over, Truncated: cut}
		if any && p.autoreset == rlx.SameStep {
			outcome.FinalObservation = leaf(last)
		}
		actions, err = p.client.Step(outcome)
	}
	return err
}

func run() error {
	habits := map[string]rlx.Autoreset{"disabled": rlx.Disabled, "same_step": rlx.SameStep, "next_step": rlx.NextStep}
	n := flag.Int("environments", 1, "how many on this connection")
	autoreset := flag.String("autoreset", "same_step", "disabled, same_step or next_step")
	mode := flag.String("mode", "train", "train or exploit")
	wanted := flag.Int("episodes", 0, "how many; 0: until training ends")
	seed := flag.Int64("seed", time.Now().UnixNano(), "of the first states")
	tokenFile := flag.String("token-file", "", "a file with the token")
	authority := flag.String("tls-ca", "", "use TLS, with this authority (a PEM file)")
	address := os.Args[min(1, len(os.Args)-1)]
	flag.CommandLine.Parse(os.Args[min(2, len(os.Args)):])
	config := rlx.Config{
		Addresses: strings.Split(address, ","), Environment: "CartPole", Environments: *n,
		Observation: rlx.Box(rlx.Float32, []uint32{4}, nil, nil), Action: rlx.Discrete(2, 0),
		Autoreset: []rlx.Autoreset{habits[*autoreset]}, Mode: rlx.Train,
	}
	config.Host, _ = os.Hostname()
	if *mode == "exploit" {
		config.Mode = rlx.Exploit
	}
	if *tokenFile != "" {
		token, err := os.ReadFile(*tokenFile)
		if err != nil {
			return err
		}
		config.Token = strings.TrimSpace(string(token))
	}
	if *authority != "" {
		pem, err := os.ReadFile(*authority)
		if err != nil {
			return err
		}
		config.TLS = &tls.Config{RootCAs: x509.NewCertPool()}
		config.TLS.RootCAs.AppendCertsFromPEM(pem)
	}
	client, err := rlx.New(config)
	if err != nil {
		return err
	}
	defer client.Close()
	p := &player{client, habits[*autoreset], make([]cartPole, *n), rand.New(rand.NewSource(*seed)), 0, *wanted, 0}
	for err = p.play(); errors.Is(err, rlx.ErrInterrupted); { // interrupted: new episodes, a new connection
		err = p.play()
	}
	if p.episodes > 0 {
		fmt.Printf("mean of %d episodes: %.2f\n", p.episodes, p.total/float64(p.episodes))
	}
	if errors.Is(err, rlx.ErrFinished) {
		fmt.Println("training has finished")
		return nil
	}
	return err
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func main() {
	err := run()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	var refusal *rlx.Error
	if errors.As(err, &refusal) && refusal.Code >= 4 && refusal.Code <= 7 {
		os.Exit(2) // a retry does not help
	}
	os.Exit(1)
}
