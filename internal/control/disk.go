package control

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sluice/internal/sticky"
	"sluice/router"
)

// saved is the file of the last good snapshot. It holds hashes of keys and no
// secret, and is readable by its owner only.
type saved struct {
	Format  int             `json:"format"`
	SHA256  string          `json:"sha256"` // of payload
	Payload json.RawMessage `json:"payload"`
}

type payload struct {
	Snapshot *router.Snapshot   `json:"snapshot"`
	Kills    []sticky.KillEntry `json:"kills,omitempty"`
}

const savedFormat = 1

// save replaces the file atomically: a crash leaves the old or the new one.
func (c *Controller) save(snap *router.Snapshot, kills []sticky.KillEntry) {
	if c.o.SnapshotPath == "" {
		return
	}
	if err := writeSnapshot(c.o.SnapshotPath, snap, kills); err != nil {
		c.degrade(CodeSnapshot, fmt.Sprintf("without the database this replica could not start: %v", err))
		return
	}
	c.degrade(CodeSnapshot, "")
}

func writeSnapshot(path string, snap *router.Snapshot, kills []sticky.KillEntry) error {
	body, err := json.Marshal(payload{snap, kills})
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	sum := sha256.Sum256(body)
	file, err := json.Marshal(saved{savedFormat, hex.EncodeToString(sum[:]), body})
	if err != nil {
		return fmt.Errorf("encode snapshot: %w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	tmp, err := os.CreateTemp(dir, filepath.Base(path)+".tmp*")
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	_, err = tmp.Write(file)
	err = errors.Join(err, tmp.Sync(), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write snapshot: %w", err), os.Remove(tmp.Name()))
	}
	if d, err := os.Open(dir); err == nil { // make the rename durable where the system can
		_ = d.Sync()
		d.Close()
	}
	return nil
}

// load reads the file; nil without one.
func (c *Controller) load() (*router.Snapshot, []sticky.KillEntry, error) {
	if c.o.SnapshotPath == "" {
		return nil, nil, nil
	}
	b, err := os.ReadFile(c.o.SnapshotPath)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("no last good snapshot at %s", c.o.SnapshotPath)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("last good snapshot: %w", err)
	}
	snap, kills, err := readSnapshot(b)
	if err != nil {
		return nil, nil, fmt.Errorf("last good snapshot %s: %w; delete it", c.o.SnapshotPath, err)
	}
	return snap, kills, nil
}

func readSnapshot(b []byte) (*router.Snapshot, []sticky.KillEntry, error) {
	var f saved
	if err := json.Unmarshal(b, &f); err != nil {
		return nil, nil, fmt.Errorf("is damaged: %w", err)
	}
	if f.Format != savedFormat {
		return nil, nil, fmt.Errorf("has format %d, this binary reads %d", f.Format, savedFormat)
	}
	sum := sha256.Sum256(f.Payload)
	if hex.EncodeToString(sum[:]) != strings.ToLower(f.SHA256) {
		return nil, nil, errors.New("is damaged: checksum does not match")
	}
	var p payload
	if err := json.NewDecoder(bytes.NewReader(f.Payload)).Decode(&p); err != nil {
		return nil, nil, fmt.Errorf("is damaged: %w", err)
	}
	if p.Snapshot == nil || p.Snapshot.Document.Revision < 1 {
		return nil, nil, errors.New("is damaged: it holds no document")
	}
	return p.Snapshot, p.Kills, nil
}

// killsOnDisk are kills that an embedded store forgot with the last process.
func (c *Controller) killsOnDisk() []sticky.KillEntry {
	_, kills, err := c.load()
	if err != nil {
		return nil
	}
	return kills
}

func sortKills(list []sticky.KillEntry) {
	slices.SortFunc(list, func(a, b sticky.KillEntry) int {
		if c := strings.Compare(a.Experiment, b.Experiment); c != 0 {
			return c
		}
		if a.Generation != b.Generation {
			return a.Generation - b.Generation
		}
		if c := strings.Compare(a.Variant, b.Variant); c != 0 || a.CutStreams == b.CutStreams {
			return c
		}
		if b.CutStreams {
			return -1
		}
		return 1
	})
}
