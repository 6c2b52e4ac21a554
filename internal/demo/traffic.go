package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	openai "github.com/sashabaranov/go-openai"
)

var prompts = []string{
	"Summarise this ticket in two sentences: the invoice was sent twice.",
	"Write a friendly reminder about the meeting tomorrow at nine.",
	"Which of these three plans suits a team of five, and why?",
	"Translate into German: the delivery is late by one day.",
	"Explain what a canary release is to somebody new.",
	"List the steps to reset a password.",
}

// Traffic lets users talk until ctx ends: Poisson arrivals at rate requests per
// second, a few users far more active than the most, three in four streamed.
type Traffic struct {
	BaseURL string // with /v1
	Key     string
	Users   int
	Rate    float64
}

// Run returns when ctx has ended and the last request with it.
func (t Traffic) Run(ctx context.Context) {
	c := openai.DefaultConfig(t.Key)
	c.BaseURL = t.BaseURL
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	defer transport.CloseIdleConnections()
	c.HTTPClient = &http.Client{Transport: transport}
	client := openai.NewClientWithConfig(c)
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, 256)
	for {
		wait := time.Duration(rand.ExpFloat64() / t.Rate * float64(time.Second))
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
		select {
		case slots <- struct{}{}:
		default:
			continue // everybody is waiting already
		}
		wg.Go(func() {
			defer func() { <-slots }()
			t.one(ctx, client)
		})
	}
}

// one is one user's request, with the SDK that applications use. What goes
// wrong is the demo's subject and is seen in its metrics.
func (t Traffic) one(ctx context.Context, client *openai.Client) {
	u := int(rand.ExpFloat64() * float64(t.Users) / 4)
	req := openai.ChatCompletionRequest{
		Model: "chat", User: fmt.Sprintf("user-%04d", u%t.Users),
		Messages: []openai.ChatCompletionMessage{{Role: openai.ChatMessageRoleUser, Content: prompts[rand.IntN(len(prompts))]}},
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if rand.IntN(4) == 0 {
		_, _ = client.CreateChatCompletion(ctx, req)
		return
	}
	s, err := client.CreateChatCompletionStream(ctx, req)
	if err != nil {
		return
	}
	defer s.Close()
	leave := -1
	if rand.IntN(50) == 0 {
		leave = 3 // some close the tab
	}
	for i := 0; i != leave; i++ {
		if _, err := s.Recv(); errors.Is(err, io.EOF) || err != nil {
			return
		}
	}
}
