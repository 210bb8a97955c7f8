"""Writes conversations for the demo model to learn from: requests for stories, questions about them, greetings.

usage: talks.py FILE.jsonl [--count N] [--seed N]

Each line is a conversation: a list of [role, text]. Everything is made here, from the lists and rules below, so nobody
has rights in it. A story has facts (who, where, what was lost, who helped, how it ended); its sentences are chosen among
several that say the same, and questions are answered from the facts.
"""
import argparse
import json
import random

# kind, pronoun, homes
ANIMALS = {
    "fox": "in a den under an old oak", "rabbit": "in a burrow at the edge of the wood", "mouse": "in a hole behind the mill",
    "bear": "in a cave on the hill", "wolf": "in the dark forest", "hen": "in a red barn", "duck": "beside a quiet pond",
    "frog": "in a green pool", "owl": "in a hollow tree", "cat": "in a cottage with a blue door", "dog": "on a farm",
    "squirrel": "at the top of a tall pine", "hedgehog": "under the garden hedge", "goat": "on a steep mountain",
    "sheep": "in a wide meadow", "crow": "on the church tower", "donkey": "in a stable by the road", "turtle": "near the slow river",
    "lion": "on the yellow plain", "elephant": "in a far warm land", "monkey": "among the fig trees", "beaver": "in a house of sticks",
    "sparrow": "under the roof of an inn", "pony": "in a field of clover", "pig": "in a small brick house", "bee": "in a hive under the lime trees",
}
PEOPLE = {
    "girl": ("she", "in a village by the sea"), "boy": ("he", "in a little town"), "princess": ("she", "in a castle on a rock"),
    "prince": ("he", "in a palace with a hundred windows"), "king": ("he", "in a great stone castle"), "queen": ("she", "in a white palace"),
    "miller": ("he", "in a mill by the stream"), "farmer": ("he", "on a farm at the end of the lane"), "fisherman": ("he", "in a hut on the shore"),
    "shepherd": ("he", "in the high hills"), "baker": ("he", "above a warm bakery"), "witch": ("she", "in a crooked house"),
    "giant": ("he", "in the mountains"), "dragon": ("he", "in a cave full of gold"), "fairy": ("she", "in a bluebell wood"),
    "tailor": ("he", "in a narrow street"), "sailor": ("he", "in a harbour town"), "knight": ("he", "at the court of the king"),
    "grandmother": ("she", "in a cottage full of clocks"), "wizard": ("he", "in a tall tower"), "robot": ("it", "in an old workshop"),
    "pirate": ("he", "on a ship with brown sails"), "snowman": ("he", "in a quiet garden"), "soldier": ("he", "in a town with high walls"),
}
NAMES = {
    "she": "Lily Rose Anna Clara Molly Greta Ida Nell Daisy Flora Mabel Hazel Tilly Ruth Elsie Wren Poppy Martha Polly Dora".split(),
    "he": "Tom Peter Jack Oliver Hans Robin Felix Will Ned Otto Toby Hugo Sam Finn Max Bruno Jasper Arthur Emil Barnaby".split(),
    "it": "Pip Dot Scrap Button Penny Spark".split(),
}
ADJECTIVES = "little brave clever lazy kind proud shy merry curious poor gentle greedy lonely young old quick careful cheerful".split()
THINGS = {
    "a golden key": "key", "a silver bell": "bell", "a red ball": "ball", "a blue ribbon": "ribbon", "a warm cloak": "cloak",
    "a wooden flute": "flute", "a small lantern": "lantern", "a glass marble": "marble", "a bright button": "button",
    "a paper kite": "kite", "a pair of boots": "boots", "a round mirror": "mirror", "a gold ring": "ring", "a green hat": "hat",
    "a picture book": "book", "a toy boat": "boat", "a sack of nuts": "sack", "a basket of apples": "basket", "a jar of honey": "jar",
}
PLACES = ["the forest", "the river", "the old bridge", "the market", "the hill", "the garden", "the well", "the mill pond", "the meadow",
          "the seashore", "the orchard", "the crossroads", "the barn", "the snowy pass", "the ruined tower", "the cherry tree"]
FOODS = ["bread", "honey cake", "apples", "soup", "cheese", "berries", "nuts", "porridge", "plums", "pancakes"]


def an(phrase: str) -> str:
    return ("an " if phrase[0] in "aeiou" else "a ") + phrase


class Who:
    """Somebody in a story: what they are, what they are called, where they live."""

    def __init__(self, r, kind=None, name=None):
        self.kind = kind or r.choice(list(ANIMALS) + list(PEOPLE))
        if self.kind in PEOPLE:
            self.he, self.home = PEOPLE[self.kind]
        else:
            self.he, self.home = r.choice(["he", "she"]), ANIMALS[self.kind]
        self.name = name or r.choice(NAMES[self.he])
        self.him = {"he": "him", "she": "her", "it": "it"}[self.he]
        self.his = {"he": "his", "she": "her", "it": "its"}[self.he]
        self.adj = r.choice(ADJECTIVES)
        self.He, self.His = self.he.capitalize(), self.his.capitalize()
        self.the = f"the {self.kind}"


def pick(r, *ways):
    return r.choice(ways)


# Each plot gives the middle and end of a story about `a` and `b`, and its facts: questions with their answers.

def lost(r, a, b):
    thing, short = r.choice(list(THINGS.items()))
    where, dark = r.sample(PLACES, 2)
    are = "were" if short == "boots" else "was"
    them = "them" if short == "boots" else "it"
    s = [pick(r, f"{a.He} had {thing}, and {a.he} loved {them} more than anything else.",
              f"What {a.name} loved best in the world {are} {thing}.", f"{a.His} dearest treasure was {thing}."),
         pick(r, f"One morning the {short} {are} gone.", f"But one day {a.name} could not find the {short} anywhere.",
              f"One windy evening {a.name} came home, and the {short} {are} not there."),
         pick(r, f"{a.He} looked under the bed and behind the door, but found nothing.", f"{a.name} looked high and low, and began to cry.",
              f"{a.He} searched all day long, until {a.his} feet were sore."),
         pick(r, f'Then along came {b.name} the {b.kind}. "Why are you so sad?" asked {b.name}.',
              f'{b.name} the {b.kind} heard {a.him} and stopped. "What is the matter?" said {b.he}.'),
         pick(r, f'"I have lost my {short}," said {a.name}.', f'"My {short} {are} here, and now I cannot find {them}," {a.he} answered.'),
         pick(r, f'"Do not cry," said {b.name}. "I will help you look."', f'"Two can see more than one," said {b.name}. "Come with me."'),
         pick(r, f"Together they went to {where}, and then to {dark}.", f"They asked at {where}, but nobody had seen {them}. So they went on to {dark}."),
         pick(r, f"And there, under a leaf, {are} the {short}!", f"There {b.name} saw something shine. It was the {short}!" if short != "boots" else f"There {b.name} saw them, quite dry, side by side!"),
         pick(r, f"{a.name} was so happy that {a.he} danced.", f'"Thank you, dear friend!" cried {a.name}, and laughed for joy.'),
         pick(r, f"From that day on {a.name} and {b.name} were the best of friends.", f"They walked home together as the stars came out, and they have been friends ever since.")]
    q = [(pick(r, f"What did {a.name} lose?", f"What was lost?"), f"{a.name} lost {a.his} {short}."),
         (pick(r, f"Who helped {a.name}?", f"Who helped {a.the}?"), f"{b.name} the {b.kind} helped {a.him}."),
         (pick(r, f"Where was the {short} found?" if short != "boots" else "Where were the boots found?", f"Where did they find the {short}?"), f"They found {them} at {dark}.")]
    return s, q, "A friend who helps is worth more than gold."


def trapped(r, a, b):
    where = r.choice(PLACES)
    trap = r.choice(["caught in a net", "stuck in the mud", "caught in the thorns", "fast under a fallen branch"])
    trouble = r.choice(["a great storm came, and the water rose", "hunters came with dogs", "the snow fell so thick that nobody could see the path"])
    s = [pick(r, f"One day {a.name} was walking near {where} when {a.he} heard a cry.", f"One day, near {where}, {a.he} heard somebody call for help."),
         pick(r, f"It was {b.name} the {b.kind}, who was {trap}.", f"There was {b.name}, {an(b.adj)} {b.kind}, {trap}."),
         pick(r, f'"Please help me!" said {b.name}. "I cannot get out."', f'"Do not leave me here," begged {b.name}.'),
         pick(r, f"{a.name} was afraid, but {a.he} did not run away.", f'"Hold still," said {a.name}, "and do not be afraid."'),
         pick(r, f"{a.He} pulled and pulled, until at last {b.name} was free.", f"{a.He} worked for a long time, and at last {b.name} was free."),
         pick(r, f'"I will never forget this," said {b.name}.', f'"One day I shall do as much for you," said {b.name}, and {a.name} smiled.'),
         pick(r, f"Not long after, {trouble}.", f"Before the year was over, {trouble}."),
         pick(r, f"{a.name} did not know where to go.", f"{a.name} was all alone, and {a.he} thought that the end had come."),
         pick(r, f"Then {b.name} came running. \"Follow me!\" {b.he} cried, and led {a.him} safely home.", f"But {b.name} had not forgotten. {b.He} came, and showed {a.him} a safe way home."),
         pick(r, f"So the kindness of {a.name} came back to {a.him}.", f"That night they sat by the fire together, and both of them were glad.")]
    q = [(pick(r, f"Who was {trap}?", "Who cried for help?"), f"{b.name} the {b.kind} was {trap}."),
         (pick(r, f"Who freed {b.name}?", f"Who helped {b.the}?"), f"{a.name} the {a.kind} helped {b.him}."),
         (f"How did {b.name} thank {a.name}?", f"{b.name} led {a.him} safely home when {a.he} was in danger.")]
    return s, q, "A kind deed is never lost."


def share(r, a, b):
    food = r.choice(FOODS)
    where = r.choice(PLACES)
    s = [pick(r, f"One winter there was very little to eat, and {a.name} had only some {food}.", f"One cold day {a.name} had nothing left but some {food}."),
         pick(r, f"On the way to {where} {a.he} met {b.name} the {b.kind}, who was thin and hungry.", f"At {where} sat {b.name}, {an(b.adj)} {b.kind}, who had eaten nothing for two days."),
         pick(r, f'"Have you something for me?" asked {b.name}.', f'"I am so hungry," said {b.name} in a small voice.'),
         pick(r, f"{a.name} looked at the {food}. There was hardly enough for one.", f'"If I give it away, I shall be hungry myself," thought {a.name}.'),
         pick(r, f"But {a.he} broke it in two and gave {b.name} the bigger half.", f'Then {a.he} said, "Sit down. We will share what there is."'),
         pick(r, "They ate together, and it tasted better than a feast.", f"They ate slowly, and told each other stories until it was dark."),
         pick(r, f"In spring {b.name} came back with a basket that was full to the brim.", f"When the snow had gone, there was a knock at the door. It was {b.name}, with a full basket."),
         pick(r, f'"You shared with me when you had little," said {b.name}. "Now I share with you."', f'"This is for you," said {b.name}, "because you did not send me away."'),
         pick(r, f"And {a.name} was never hungry again.", "They laughed, and ate until they could eat no more.")]
    q = [(f"What did {a.name} share?", f"{a.name} shared {a.his} {food}."),
         (pick(r, f"Who was hungry?", f"Whom did {a.name} meet?"), f"{a.name} met {b.name} the {b.kind}, who was hungry."),
         (f"What did {b.name} bring in spring?", f"{b.name} brought a full basket.")]
    return s, q, "Whoever shares a little will not want for much."


def pride(r, a, b):
    skill, verb = r.choice([("run", "ran"), ("swim", "swam"), ("climb", "climbed"), ("row", "rowed")])
    goal = r.choice(PLACES)
    delay = r.choice(["lay down to sleep in the sun", "stopped to look at the flowers", "stopped to boast to the crows", "sat down to eat berries"])
    s = [pick(r, f"{a.name} could {skill} faster than anyone, and said so every day.", f'"Nobody can {skill} as fast as I," {a.he} used to say.'),
         pick(r, f'{b.name} the {b.kind} grew tired of it. "Let us have a race to {goal}," said {b.he}.', f'At last {b.name}, {an(b.adj)} {b.kind}, said, "Then race with me to {goal}."'),
         pick(r, f"Everybody laughed, and {a.name} laughed the loudest.", f'"With you?" cried {a.name}. "That will be easy!"'),
         pick(r, f"They started at sunrise. Soon {a.name} was far ahead.", f"Off they went, and {a.name} was soon out of sight."),
         pick(r, f'"There is plenty of time," thought {a.name}, and {delay}.', f"Because {a.he} was so sure to win, {a.he} {delay}."),
         pick(r, f"But {b.name} {verb} on and on, slowly, and did not stop once.", f"{b.name} was slow, but {b.he} never rested."),
         pick(r, f"When {a.name} came to {goal}, {b.name} was already there.", f"The sun went down, and who stood at {goal}? It was {b.name}!"),
         pick(r, f"{a.name} hung {a.his} head. \"You have won,\" {a.he} said. \"I will not boast again.\"", f"{a.name} was ashamed, and shook {b.his} hand. \"You have taught me something,\" {a.he} said.")]
    q = [("Who won the race?", f"{b.name} the {b.kind} won the race."), (f"Why did {a.name} lose?", f"{a.name} {delay}, because {a.he} was sure to win."),
         ("Where did the race end?", f"The race ended at {goal}.")]
    return s, q, "Slow and steady goes farther than quick and proud."


def feared(r, a, b):
    where = r.choice(PLACES)
    noise = r.choice(["a terrible roar", "a deep groan", "a sound like thunder", "a long sad howl"])
    pain = r.choice(["a thorn in {his} foot", "a bad tooth", "a splinter in {his} hand", "a cold in {his} head"])
    hurt, mine = pain.format(his=b.his), pain.format(his="my")
    s = [pick(r, f"Everyone was afraid of {b.name} the {b.kind}, who lived near {where}.", f"Near {where} lived {b.name} the {b.kind}, and nobody dared to go there."),
         pick(r, f"Each night they heard {noise}.", f"When the moon was up there came {noise}."),
         pick(r, f'"I will go and see," said {a.name}, though {a.his} knees shook.', f"{a.name} could not sleep. So one night {a.he} took a lantern and went."),
         pick(r, f"There sat {b.name}, and big tears ran down {b.his} face.", f"{a.He} peeped in, and there was {b.name}, all alone and crying."),
         pick(r, f'"Why do you cry?" asked {a.name}. "I have {mine}," said {b.name}, "and nobody will help me."', f'"Do not run away," said {b.name}. "I have {mine}, and it hurts so much."'),
         pick(r, f"{a.name} washed it and bound it up, and gave {b.him} warm milk.", f"{a.name} was not afraid any more. {a.He} helped {b.him} as well as {a.he} could."),
         pick(r, "In the morning the pain was gone.", f"Soon {b.name} felt better, and smiled for the first time in years."),
         pick(r, f"After that {b.name} guarded the village every night, and everyone slept well.", f"Now the children visit {b.name} every Sunday, and nobody is afraid.")]
    q = [(f"Why did {b.name} cry?", f"{b.name} had {hurt}."), (f"Who helped {b.name}?", f"{a.name} the {a.kind} helped {b.him}."),
         (f"What did people hear at night?", f"They heard {noise}.")]
    return s, q, "Those whom we fear may only need a friend."


def wish(r, a, b):
    want = r.choice(["to be rich", "to be tall", "to fly", "to be a king", "to live for ever in summer"])
    bad = {"to be rich": "thieves came, and nobody was a true friend", "to be tall": "no house and no bed would fit",
           "to fly": "the wind was cold and there was nobody to talk to", "to be a king": "there was work from morning to night and no time to play",
           "to live for ever in summer": "the fields grew dry and the streams were empty"}[want]
    s = [pick(r, f"{a.name} was never content, and wished {want}.", f"Every evening {a.he} looked at the stars and wished {want}."),
         pick(r, f"One night {b.name} the {b.kind} came to the window.", f"One day {a.he} was kind to {b.name}, {an(b.adj)} {b.kind} who knew some magic."),
         pick(r, f'"You shall have your wish," said {b.name}, "but think well."', f'"I can give you what you wish," {b.he} said. "Are you sure?"'),
         pick(r, f'"I am sure!" cried {a.name}, and so it was.', f"{a.name} did not think at all. {a.He} said yes at once."),
         pick(r, "At first it was wonderful.", f"For a day {a.he} was the happiest in the land."),
         pick(r, f"But soon {bad}.", f"Then {a.he} found that {bad}."),
         pick(r, f'"Please take it back," {a.he} said to {b.name}. "I was happy before, and did not know it."', f"So {a.he} went to {b.name} and asked to be as before."),
         pick(r, f"{b.name} smiled and clapped {b.his} hands, and {a.name} was at home again.", f"{b.name} nodded. In the morning all was as it had been."),
         pick(r, f"And {a.name} never complained again.", f"How good the old bed felt! And how sweet the bread was!")]
    q = [(f"What did {a.name} wish?", f"{a.name} wished {want}."), (f"Who gave {a.name} the wish?", f"{b.name} the {b.kind} did."),
         (f"Was {a.name} happy with the wish?", f"No. Soon {bad}, and {a.he} asked {b.name} to take it back.")]
    return s, q, "Be glad of what you have."


def truth(r, a, b):
    thing = r.choice(["the blue jug", "the kitchen window", "the old clock", "the honey pot", "the best plate"])
    s = [pick(r, f"One rainy day {a.name} played ball in the house, and broke {thing}.", f"One afternoon {a.he} was careless and broke {thing}."),
         pick(r, f"{a.He} hid the pieces and told nobody.", f'"If I say nothing, nobody will know," {a.he} thought.'),
         pick(r, f"But {b.name} the {b.kind} was blamed for it.", f"In the evening everyone thought that {b.name} the {b.kind} had done it."),
         pick(r, f"{b.name} said nothing, and looked very sad.", f'"It was not I," said {b.name}, but nobody believed {b.him}.'),
         pick(r, f"{a.name} could not eat {a.his} supper, and could not sleep.", f"That night {a.name} lay awake and listened to the rain."),
         pick(r, f'In the morning {a.he} stood up and said, "I did it. I am sorry."', f'At last {a.he} got up and told the truth. "It was I," {a.he} said.'),
         pick(r, f"Nobody was angry. They were glad that {a.he} had been honest.", f'"That was brave," they said, and {b.name} was the first to forgive {a.him}.'),
         pick(r, f"{a.name} mended it as well as {a.he} could, and {b.name} helped.", f"Then {a.name} and {b.name} went out to play, and {a.his} heart was light.")]
    q = [("What was broken?", f"{thing[0].upper() + thing[1:]} was broken."), ("Who broke it?", f"{a.name} the {a.kind} broke it."), ("Who was blamed?", f"{b.name} the {b.kind} was blamed.")]
    return s, q, "The truth makes the heart light."


def build(r, a, b):
    what = r.choice(["a boat", "a bridge", "a house", "a kite as big as a door", "a raft", "a snow castle"])
    where = r.choice(PLACES)
    broke = r.choice(["the wind blew it down", "it fell to pieces", "the rain washed it away"])
    s = [pick(r, f"One fine day {a.name} wanted to build {what}.", f'"I shall build {what}," said {a.name} one morning, "and I need nobody."'),
         pick(r, f"{a.He} worked alone near {where}, but {broke}.", f"{a.He} carried wood to {where} all by {a.him}self. In the night {broke}." if a.he != "he" else f"{a.He} carried wood to {where} all by himself. In the night {broke}."),
         pick(r, f'{b.name} the {b.kind} came by. "May I help?" {b.he} asked.', f'"I know how to tie good knots," said {b.name} the {b.kind}.'),
         pick(r, f'"No," said {a.name}. But it went wrong a second time.', f"{a.name} shook {a.his} head and tried again, and again it went wrong."),
         pick(r, f'Then {a.he} sighed. "I cannot do it alone," {a.he} said. "Please help me."', f"At last {a.he} went to {b.name} and asked for help."),
         pick(r, f"{b.name} held the wood and {a.name} tied the ropes.", f"One held and the other hammered, and they sang at their work."),
         pick(r, f"In three days it was done, and it was strong and fine.", f"When the sun set it was ready, and it did not fall."),
         pick(r, f'"It is ours," said {a.name}, "not mine."', f"And they painted both their names on it, in red.")]
    q = [(f"What did {a.name} want to build?", f"{a.name} wanted to build {what}."), (f"Who helped {a.name}?", f"{b.name} the {b.kind} helped."),
         (f"What happened when {a.name} worked alone?", f"{broke[0].upper() + broke[1:]}.")]
    return s, q, "Two can do what one cannot."


def night(r, a, b):
    sound = r.choice(["a tapping at the window", "a scratching at the door", "a humming in the chimney", "a stamping on the roof"])
    s = [pick(r, f"{a.name} was afraid of the dark.", f"When the candle was out, {a.name} always hid under the blanket."),
         pick(r, f"One night {a.he} heard {sound}.", f"One night there was {sound}. {a.name} held {a.his} breath."),
         pick(r, f'"Who is there?" {a.he} whispered.', f'"Go away!" {a.he} called, but it did not stop.'),
         pick(r, f'"It is only me," said a soft voice. It was {b.name} the {b.kind}.', f"Slowly {a.he} opened the door. There stood {b.name} the {b.kind}, wet and cold."),
         pick(r, f'"I have lost my way," said {b.name}. "May I stay until morning?"', f'"I was afraid out there," said {b.name}. "May I come in?"'),
         pick(r, f"{a.name} forgot to be afraid, and made room in the warm bed.", f'"Of course," said {a.name}, and lit the lamp and made some tea.'),
         pick(r, "They looked out at the moon, and it was round and bright.", f"{b.name} showed {a.him} the stars and told {a.him} all their names."),
         pick(r, f"Since that night {a.name} has loved the dark, because it is full of stars.", f"Then they fell asleep, and {a.name} was never afraid of the dark again.")]
    q = [(f"What was {a.name} afraid of?", f"{a.name} was afraid of the dark."), (f"What did {a.name} hear?", f"{a.He} heard {sound}."), ("Who was at the door?", f"It was {b.name} the {b.kind}.")]
    return s, q, "What we fear in the dark is often a friend."


def gift(r, a, b):
    thing, short = r.choice([t for t in THINGS.items() if t[1] != "boots"])
    s = [pick(r, f"Tomorrow was the birthday of {b.name} the {b.kind}, and {a.name} had no gift.", f"{a.name} wanted to give something to {b.name} the {b.kind}, who was {a.his} friend."),
         pick(r, f"In the market there was {thing}, but it cost three coins, and {a.he} had none.", f"In a shop window {a.he} saw {thing}. But {a.he} had no money."),
         pick(r, f"So {a.he} swept the baker's floor and got one coin.", f"So {a.he} carried water for the old people, and earned one coin."),
         pick(r, f"{a.He} chopped wood for the smith and got the second.", f"{a.He} washed the windows of the inn, and earned another."),
         pick(r, f"For the third {a.he} watched the geese until evening.", f"And for the last {a.he} picked apples until the sun went down."),
         pick(r, f"Then {a.he} ran to the market and bought the {short}.", f"With the three coins {a.he} bought the {short}, and ran all the way."),
         pick(r, f'"For me?" cried {b.name}, and {b.his} eyes shone.', f"{b.name} opened the parcel and could not speak for joy."),
         pick(r, f'"It is beautiful," {b.he} said. "But the best gift is a friend like you."', f"They ate cake and sang until it was late.")]
    q = [(f"What did {a.name} buy?", f"{a.name} bought {thing}."), ("For whom was the gift?", f"It was for {b.name} the {b.kind}."), ("How many coins did it cost?", "It cost three coins.")]
    return s, q, "A gift that you have worked for is worth twice as much."


PLOTS = [lost, trapped, share, pride, feared, wish, truth, build, night, gift]


class Story:
    def __init__(self, r, a=None, b=None, opening=None):
        self.a, self.b = a or Who(r), b or Who(r)
        while self.b.name == self.a.name or (b is None and self.b.kind == self.a.kind):
            self.b = Who(r, b.kind) if b else Who(r)
        a, b = self.a, self.b
        first = opening or pick(
            r, f"Once upon a time there was {an(a.adj)} {a.kind} named {a.name}, who lived {a.home}.",
            f"Once upon a time {an(a.adj)} {a.kind} lived {a.home}. {a.His} name was {a.name}.",
            f"Long ago there lived {an(a.adj)} {a.kind} whose name was {a.name}. {a.He} lived {a.home}.",
            f"There was once {an(a.adj)} {a.kind} called {a.name}, and {a.his} home was {a.home}.")
        middle, facts, self.moral = r.choice(PLOTS)(r, a, b)
        sentences = [first, *middle]
        # Three or four paragraphs.
        cut = sorted(r.sample(range(2, len(sentences) - 1), r.choice([2, 2, 3])))
        paragraphs = [" ".join(sentences[i:j]) for i, j in zip([0, *cut], [*cut, len(sentences)])]
        if r.random() < 0.25:
            paragraphs.append(pick(r, "The end.", f"And the moral is: {self.moral}"))
        self.text = "\n\n".join(paragraphs)
        self.facts = facts + [
            (pick(r, f"Who was {a.name}?", f"What was {a.name}?"), f"{a.name} was {an(a.adj)} {a.kind}."),
            (pick(r, f"Where did {a.name} live?", f"Where did {a.the} live?"), f"{a.name} lived {a.home}."),
            (pick(r, "Who was in the story?", "Who is the story about?"), f"The story is about {a.name} the {a.kind} and {b.name} the {b.kind}."),
            (pick(r, f"What was the name of the {a.kind}?", f"What was {a.the} called?"), f"The {a.kind} was called {a.name}."),
            (pick(r, f"What was the name of the {b.kind}?", f"What was {b.the} called?"), f"The {b.kind} was called {b.name}."),
            (pick(r, "What is the moral?", "What can we learn from it?", "What is the moral of the story?"), self.moral),
            (pick(r, "How does the story end?", "How did it end?"), middle[-1])]


def case(r, text: str) -> str:
    """As people type: without a capital, without a full stop."""
    if r.random() < 0.25:
        text = text[0].lower() + text[1:]
    if r.random() < 0.25:
        text = text.rstrip(".?!")
    return text


def request(r):
    """What somebody asks for, and the story."""
    way = r.random()
    please = pick(r, "", "", ", please")
    ask = pick(r, "Tell me a story about", "Can you tell me a story about", "Please tell me a story about", "I would like a story about", "Write a story about",
               "Tell a story about", "Write me a short story about", "Make up a story about", "Could you tell us a tale about", "A story about", "A bedtime story about",
               "Give me a story with", "I want a story with", "Tell me about")
    if way < 0.22:
        story = Story(r)
        what = pick(r, "Tell me a story", "Tell me a short story", "Can you tell me a story", "I want a story", "Write a story", "Please tell me a bedtime story", "A story",
                    "Tell me a fairy tale", "Story time", "Can I have a story", "I cannot sleep. Tell me a story", "Tell me something nice", "Yes, a story")
        return what + please + pick(r, ".", ".", "!", ""), story
    if way < 0.50:
        a = Who(r)
        story = Story(r, a)
        if r.random() < 0.4:
            return f"{ask} {an(a.adj + ' ' + a.kind)}{please}.", story
        return f"{ask} {an(a.kind)}{please}.", story
    if way < 0.66:
        a = Who(r)
        return f"{ask} {a.name} the {a.kind}{please}.", Story(r, a)
    if way < 0.70:
        a = Who(r)
        return f"{ask} {pick(r, an(a.kind) + ' named', an(a.kind) + ' called')} {a.name}{please}.", Story(r, a)
    if way < 0.88:
        a, b = Who(r), Who(r)
        while b.kind == a.kind:
            b = Who(r)
        return f"{ask} {an(a.kind)} and {an(b.kind)}{please}.", Story(r, a, b)
    if way < 0.93:
        a = Who(r)
        opening = pick(r, f"Once upon a time there was {an(a.adj)} {a.kind} named {a.name}", f"Once upon a time {an(a.adj)} {a.kind} lived {a.home}",
                       f"There was once {an(a.adj)} {a.kind} called {a.name}")
        full = opening + (f", who lived {a.home}." if "named" in opening else f", and {a.his} home was {a.home}." if "called" in opening else f". {a.His} name was {a.name}.")
        return opening + pick(r, "", "..."), Story(r, a, opening=full)
    return pick(r, "Once upon a time", "Once upon a time...", "Once upon a time there was", "Once upon a time,"), Story(r, a=Who(r))


OFFER = ["Shall I tell you a story?", "Would you like a story?", "What shall the story be about?", "Tell me who should be in the story.",
         "Name an animal, and I will tell you a story about it.", "Would you like to hear about a fox, or about a princess?"]
HELLO = ["Hello", "Hi", "Hello!", "Hi!", "Hi there", "Good morning", "Good evening", "Hey", "Hello there!", "Good day", "Greetings", "hello", "hi", "hey there", "Hello, demo!"]
SELF = [
    (["Who are you?", "What are you?", "what are you", "Tell me about yourself.", "Are you a robot?", "Are you a person?", "Are you an AI?", "Introduce yourself."],
     ["I am a very small story teller. I live inside this program and tell stories.", "I am a little language model that tells stories. I learned from old children's books.",
      "I am the demo, a small model that tells stories."]),
    (["What is your name?", "What are you called?", "Do you have a name?", "Your name?"], ["I am called demo. I am a small story teller.", "My name is demo. I tell stories."]),
    (["What can you do?", "What do you do?", "How can you help me?", "Help", "help me", "What can I ask you?", "What are you good at?", "What do you know?"],
     ["I can tell short stories, and answer questions about them.", "I tell stories. Say who should be in one, and I begin.",
      "I can tell you a story about an animal, a princess, a giant, or whomever you like."]),
    (["How are you?", "How are you today?", "How do you do?", "How is it going?", "Are you well?"], ["I am very well, thank you.", "Thank you, I am as merry as a cricket.", "I am well, and full of stories."]),
]
THANKS = ["Thank you", "Thank you!", "Thanks", "Thanks a lot", "That was nice", "That was a lovely story", "I like it", "Great", "Good story", "Very good!", "Nice", "Wonderful!", "ok", "Okay", "Cool"]
WELCOME = ["You are welcome.", "I am glad that you liked it.", "Thank you for listening.", "It was a pleasure."]
BYE = ["Goodbye", "Bye", "Good night", "See you", "Bye bye", "Good night!", "That is all", "I must go now"]
FAREWELL = ["Goodbye! Come back for another story.", "Good night, and sweet dreams.", "Farewell! It was nice to talk with you.", "Goodbye, and be well."]
TOPICS = ["France", "England", "Japan", "the moon", "the sun", "gravity", "football", "history", "music", "the weather", "Paris", "London", "computers", "physics", "chemistry", "the universe",
          "cooking", "money", "politics", "the stock market", "trains", "Shakespeare", "Rome", "dinosaurs", "electricity", "medicine", "space", "cars", "the internet", "art", "the sea", "mathematics"]


def unknown(r):
    """A question that a story teller cannot answer: it says so, and offers what it can."""
    t, n, m = r.choice(TOPICS), r.randrange(2, 99), r.randrange(2, 99)
    language = r.choice(["Python", "Rust", "JavaScript", "C", "Java", "SQL", "HTML"])
    asked = pick(r, f"What is {t}?", f"Tell me about {t}.", f"Explain {t} to me.", f"How does {t} work?", f"Why is {t} important?", f"What do you know about {t}?", f"What is the capital of {t}?",
                 f"Who invented {t}?", f"What is {n} plus {m}?", f"What is {n} times {m}?", f"{n} + {m} = ?", f"Write a {language} program.", f"Write a function in {language} that sorts a list.",
                 f"Fix this {language} code.", "Why is the sky blue?", "Why is the grass green?", "What is the meaning of life?", "What time is it?", "What day is it today?", "Who is the president?",
                 "What is the weather like?", f"Translate this into {r.choice(['French', 'German', 'Spanish'])}.", "Summarise this text.", "Can you help me with my homework?", "Give me a recipe for soup.",
                 f"When was {t} discovered?", f"Is {t} good or bad?", "Write an email to my boss.", "What is the best phone?", "How old are you?", "Where do you live?", "Do you love me?", "How do I lose weight?",
                 f"What is the largest city in {t}?", f"How far is it to {t}?", "What is the answer?", "Say something in French.", "Count to ten.", "What does this mean?")
    why = pick(r, "I am only a small story teller, and I do not know that.", "That I do not know. I know only stories.", "I am afraid that is too hard for me. I only tell stories.",
               "I have learned nothing about that. I only know stories.", "I cannot say. I am a very small model, and all that I can do is tell stories.")
    return asked, why + " " + r.choice(OFFER)


def small_talk(r):
    way = r.random()
    if way < 0.35:
        return r.choice(HELLO), pick(r, "Hello!", "Hello there!", "Good day to you!", "Welcome!") + " " + pick(r, "I am a story teller.", "I am a small story teller.", "", "How nice that you are here.") .strip() + " " + r.choice(OFFER)
    if way < 0.75:
        asks, says = r.choice(SELF)
        return r.choice(asks), r.choice(says) + " " + r.choice(OFFER)
    return unknown(r)


def conversation(r):
    turns = []

    def both(asked, said):
        turns.append(["user", case(r, asked)])
        turns.append(["assistant", " ".join(said.split(" "))])

    if r.random() < 0.12:
        turns.append(["system", pick(r, "You are a helpful assistant.", "You are a kind story teller.", "You tell stories to children.", "Answer briefly.", "You are a helpful assistant who tells stories.", "Be friendly.")])
    if r.random() < 0.35:
        both(*small_talk(r))
        if r.random() < 0.4:
            both(*(unknown(r) if r.random() < 0.6 else small_talk(r)))
    if r.random() < 0.85 or not [t for t in turns if t[0] == "user"]:
        for _ in range(1 if r.random() < 0.8 else 2):
            asked, story = request(r)
            if any(t[0] == "assistant" for t in turns) and r.random() < 0.3:
                both(pick(r, "Yes, please.", "Yes", "Yes please!", "Sure", "Another one, please.", "One more!", "Go on", "Another story"), story.text)
            else:
                both(asked, story.text)
            for question, answer in r.sample(story.facts, r.choice([0, 1, 1, 2, 3, 4])):
                both(question, answer)
    if r.random() < 0.2:
        both(r.choice(THANKS), r.choice(WELCOME) + " " + pick(r, "", "Shall I tell you another?", "Would you like one more?"))
    if r.random() < 0.1:
        both(r.choice(BYE), r.choice(FAREWELL))
    return [[role, text.strip()] for role, text in turns]


def main() -> None:
    args = argparse.ArgumentParser()
    args.add_argument("file")
    args.add_argument("--count", type=int, default=60_000)
    args.add_argument("--seed", type=int, default=1)
    a = args.parse_args()
    r = random.Random(a.seed)
    with open(a.file, "w", encoding="utf-8") as out:
        for _ in range(a.count):
            out.write(json.dumps(conversation(r), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
