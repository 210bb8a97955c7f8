"""Makes the sound files of tests/goldens/sound, but for those of MP3, which LAME made: `python tools/goldens/sounds.py tests/goldens/sound`.

Each holds the two tones of `source`, alone or in two channels of which the second is half as loud. Needs PyAV (FFmpeg) and
numpy; made with PyAV 18.1, FFmpeg 8.
"""

import sys
from fractions import Fraction

import av
import numpy as np


def source(rate, count):
    n = np.arange(count) * 16000.0 / rate
    return 0.4 * np.sin(n * 0.05) + 0.2 * np.sin(n * 0.013)


def encode(path, container, codec, rate, channels, seconds, video=False, bits=None, options=None, coder=None):
    tone = source(rate, int(rate * seconds))
    planes = np.stack([tone, 0.5 * tone][:channels]).astype(np.float32)
    layout = ["mono", "stereo"][channels - 1]
    with av.open(path, "w", format=container, options=options or {}) as out:
        sound = out.add_stream(codec, rate=rate, layout=layout, options={"strict": "-2", **(coder or {})})
        if bits:
            sound.bit_rate = bits
        pictures = out.add_stream("mpeg4", rate=25) if video else None
        if pictures:
            pictures.width, pictures.height, pictures.pix_fmt = 32, 32, "yuv420p"
        sound.codec_context.open()
        form, size = sound.codec_context.format.name, sound.codec_context.frame_size or 1024
        if pictures:
            for i in range(int(25 * seconds)):
                frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 20 * i % 255, np.uint8), format="rgb24")
                frame.pts, frame.time_base = i, Fraction(1, 25)
                out.mux(pictures.encode(frame))
            out.mux(pictures.encode(None))
        pieces = av.AudioResampler(format=form, layout=layout, rate=rate, frame_size=size)
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(planes), format="fltp", layout=layout)
        frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
        for piece in pieces.resample(frame) + pieces.resample(None):
            out.mux(sound.encode(piece))
        out.mux(sound.encode(None))


folder = sys.argv[1] + "/"
fragments = {"movflags": "frag_keyframe+empty_moov+default_base_moof", "frag_duration": "100000"}
encode(folder + "tone.m4a", "ipod", "aac", 16000, 1, 0.5)
encode(folder + "stereo.m4a", "ipod", "aac", 44100, 2, 0.3, options={"movflags": "+faststart"})
encode(folder + "fragments.mp4", "mp4", "aac", 44100, 1, 0.4, bits=128000, options=fragments)
encode(folder + "video.mp4", "mp4", "aac", 44100, 1, 0.3, bits=128000, video=True)
encode(folder + "tone.aac", "adts", "aac", 16000, 1, 0.4)
encode(folder + "vorbis.ogg", "ogg", "vorbis", 44100, 2, 0.3)
encode(folder + "voice.opus", "ogg", "libopus", 16000, 1, 0.5, bits=16000, coder={"application": "voip"})
encode(folder + "stereo.webm", "webm", "libopus", 48000, 2, 0.3, bits=64000)
encode(folder + "live.webm", "webm", "libopus", 48000, 1, 0.4, bits=32000, options={"live": "1"})
encode(folder + "opus.mp4", "mp4", "libopus", 48000, 1, 0.3, bits=32000)
encode(folder + "lossless.m4a", "ipod", "alac", 16000, 1, 0.05)
