package cli

import (
	"fmt"
	"log/slog"
	"net"

	"glasshouse/agents/llm/mockllm"

	"github.com/spf13/cobra"
)

func (c *command) mockLLM() *cobra.Command {
	var listen, file string
	cmd := &cobra.Command{
		Use:   "mock-llm",
		Short: "Serve a scripted language model for demos and tests",
		Long: `Serve a scripted language model for demos and tests. It needs neither an API key nor a
daemon.

The server implements the APIs of OpenAI (chat completions, responses, embeddings),
Anthropic (messages) and Gemini (generateContent), with and without streaming, and
with tool calls. The script is a YAML or JSON file, described in docs/how-to/models.md; the
default is a small demo. Equal requests get equal responses. The server runs until it
is interrupted.`,
		Example: `  glasshouse mock-llm
  glasshouse mock-llm --listen 127.0.0.1:9000 --script review.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			script := mockllm.Default()
			if file != "" {
				var err error
				script, err = mockllm.Load(file)
				if err != nil {
					return err
				}
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("open the listener for model requests: %w", err)
			}
			addr := l.Addr()
			fmt.Fprintf(c.env.Stdout, "a scripted model listens on http://%s\n  OPENAI_BASE_URL=http://%s/v1\n  ANTHROPIC_BASE_URL=http://%s\n", addr, addr, addr)
			return mockllm.New(script, slog.New(slog.NewTextHandler(c.env.Stderr, nil))).Serve(cmd.Context(), l)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:8081", "listen address (no authentication)")
	cmd.Flags().StringVar(&file, "script", "", "script of the model's replies (default: a demo)")
	return cmd
}
