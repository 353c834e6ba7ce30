package main

import (
	"bytes"
	"context"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/chromedp/chromedp"
)

// pictures writes what the pages look like, if that is asked for.
func (s *suite) pictures(ctx context.Context) error {
	if s.screenshots == "" {
		return nil
	}
	if err := os.MkdirAll(s.screenshots, 0o755); err != nil { //nolint:gosec // a folder of the repository
		return err
	}
	list, err := s.list(ctx)
	if err != nil {
		return err
	}
	for _, v := range list {
		if !slices.Contains([]string{"status", "limit, full", "queues", "dead letters", "call, dead", "key"}, v.name) {
			continue
		}
		if _, err := s.browser.open(s.site + v.path); err != nil {
			return err
		}
		for _, l := range all[:3] {
			name := fmt.Sprintf("%s-%d-%s.png", strings.ReplaceAll(strings.ReplaceAll(v.name, ", ", "-"), " ", "-"), l.width, l.scheme)
			if err := s.picture(l, filepath.Join(s.screenshots, name)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	return nil
}

func (s *suite) picture(l look, path string) error {
	if err := s.browser.look(l); err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond) // until it is drawn
	shot, err := ask(s.browser, chromedp.CaptureScreenshot())
	if err != nil {
		return err
	}
	whole, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		return err
	}
	var small bytes.Buffer
	encoder := png.Encoder{CompressionLevel: png.BestCompression}
	if err := encoder.Encode(&small, paletted(whole)); err != nil {
		return err
	}
	return os.WriteFile(path, small.Bytes(), 0o644) //nolint:gosec // a file of the repository
}

// paletted is a picture in the 256 colors that it has most of. Pages have few.
func paletted(whole image.Image) *image.Paletted {
	bounds := whole.Bounds()
	counts := map[color.NRGBA]int{}
	at := func(x, y int) color.NRGBA { return color.NRGBAModel.Convert(whole.At(x, y)).(color.NRGBA) }
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			counts[at(x, y)]++
		}
	}
	colors := make([]color.NRGBA, 0, len(counts))
	for c := range counts {
		colors = append(colors, c)
	}
	slices.SortFunc(colors, func(a, b color.NRGBA) int { return counts[b] - counts[a] })
	var palette color.Palette
	for _, c := range colors[:min(len(colors), 256)] {
		palette = append(palette, c)
	}
	out, index := image.NewPaletted(bounds, palette), map[color.NRGBA]uint8{}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			c := at(x, y)
			i, known := index[c]
			if !known {
				i = uint8(palette.Index(c)) //nolint:gosec // it has 256 at most
				index[c] = i
			}
			out.SetColorIndex(x, y, i)
		}
	}
	return out
}
